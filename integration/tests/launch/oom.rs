//! The kernel's OOM killer kills each of the executor's processes: a memory cgroup around only that process selects the
//! victim. The effects are those that `docs/design.md` states for a killed process.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, mpsc};

use executor_proto::v1::{Action, DownloadAction, RunRequest, SerialAction, failure};
use integration::api::{ending, exit};
use integration::daemon::{Daemon, Setup, has_ended};
use integration::request::{RequestBuilder as _, sleeper, update};
use integration::web::{WebAnswer, WebServer};
use integration::{host, wait};
use tonic::Code;

/// A memory cgroup without free memory. The kernel kills a process in this cgroup when the process touches a new page.
struct Full(PathBuf);

impl Full {
    /// Creates the cgroup and moves one process into it.
    fn around(pid: i32) -> Self {
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (root, limit) =
            if v1.is_dir() { (v1, "memory.limit_in_bytes") } else { (Path::new("/sys/fs/cgroup"), "memory.max") };
        let dir = root.join(format!("executor-oom-{pid}"));
        fs::create_dir(&dir).unwrap();
        let full = Self(dir);
        fs::write(full.0.join(limit), "0").unwrap();
        fs::write(full.0.join("cgroup.procs"), pid.to_string()).unwrap();
        full
    }

    /// Returns the number of processes in the cgroup that the kernel has killed.
    fn kills(&self) -> u64 {
        let text =
            ["memory.oom_control", "memory.events"].iter().find_map(|name| fs::read_to_string(self.0.join(name)).ok());
        let kills = text.as_deref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("oom_kill ")));
        kills.unwrap().parse().unwrap()
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        wait::until_ok("the cgroup is empty", || fs::remove_dir(&self.0));
    }
}

/// Makes the OOM killer kill a process. `act` is called repeatedly, to make the process touch memory.
fn kill_by_memory(pid: i32, mut act: impl FnMut()) {
    let full = Full::around(pid);
    wait::until("the OOM killer has killed the process", || {
        act();
        has_ended(pid).then_some(())
    });
    assert!(full.kills() > 0, "the OOM killer did not kill the process");
}

/// Builds a request for a sleeping container with a secret file.
fn with_secret(id: &str) -> RunRequest {
    sleeper(id).file("a", b"one-secret")
}

#[test]
fn executord_killed_by_oom_keeps_containers() {
    let mut daemon = Daemon::start();
    daemon.api.started(with_secret("on"));
    kill_by_memory(daemon.pid(), || drop(daemon.api.try_info()));
    daemon.kill(); // reaps it
    daemon.start_again();
    stop_in_order(&daemon, "on");
}

#[test]
fn launcher_killed_by_oom_keeps_containers() {
    let mut daemon = Daemon::start();
    daemon.api.started(with_secret("on"));
    kill_by_memory(daemon.launcher().unwrap(), || drop(daemon.api.run(sleeper("refused"))));
    assert_eq!(daemon.api.run(sleeper("refused")).unwrap_err().code(), Code::Unavailable);
    daemon.kill();
    daemon.start_again();
    stop_in_order(&daemon, "on");
}

/// Stops a container: its process is killed with SIGKILL, and its shim wipes the files.
fn stop_in_order(daemon: &Daemon, id: &str) {
    daemon.api.stop(id, Some(0)).unwrap();
    let container = daemon.api.wait(id).unwrap();
    let wiped_by = ending(&container).wipe.as_ref().map(|wipe| &*wipe.wiped_by);
    assert_eq!((exit(&container), wiped_by), (Err(9), Some("shim")));
}

#[test]
fn shim_killed_by_oom_loses_one_container() {
    let daemon = Daemon::start();
    daemon.api.started(with_secret("lost"));
    daemon.api.started(with_secret("on"));
    // The shim forks a helper for each update, which touches memory.
    kill_by_memory(daemon.record("lost").shim.pid, || {
        drop(daemon.api.update(update("lost", &[("a", b"another-secret")])));
    });
    let container = daemon.api.wait("lost").unwrap();
    let ending = ending(&container);
    assert_eq!(ending.failure.as_ref().unwrap().kind(), failure::Kind::SupervisorLost);
    assert_eq!(ending.wipe.as_ref().unwrap().wiped_by, "launcher");
    stop_in_order(&daemon, "on");
}

#[test]
fn worker_killed_by_oom_fails_one_transfer() {
    let daemon = Setup::default().config("[transfers]\nallowed = [\"127.0.0.1\"]\n").start();
    let (open, gate) = mpsc::channel();
    let gate = Mutex::new(gate);
    let server = WebServer::start(move |_, _| {
        gate.lock().unwrap().recv().unwrap();
        WebAnswer::ok(&[7; 1 << 20])
    });
    let download = DownloadAction { from: server.url("/x"), to: "/tmp/x".into(), ..DownloadAction::default() };
    let actions = vec![
        Action { download: Some(download), ..Action::default() },
        sleeper("").action.unwrap(), // a tree must have a run action
    ];
    let tree = Action { serial: Some(SerialAction { actions, ..SerialAction::default() }), ..Action::default() };
    daemon.api.started(RunRequest { action: Some(tree), ..RunRequest::default() }.id("failed").memory(64 << 20));
    wait::until("the server receives the request", || (!server.requests().is_empty()).then_some(()));
    let is_worker =
        |pid: &i32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.ends_with(b"transfer-worker\0"));
    let worker = host::descendants(daemon.pid()).into_iter().find(is_worker).unwrap();
    let mut answer = Some(open);
    kill_by_memory(worker, || answer.take().map_or((), |open| open.send(()).unwrap()));
    let container = daemon.api.wait("failed").unwrap();
    let message = &ending(&container).failure.as_ref().unwrap().message;
    assert!(message.contains("the worker exited without a report (signal: 9"), "{message}");
}
