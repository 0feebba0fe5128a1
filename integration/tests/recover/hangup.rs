//! A terminal that closes sends SIGHUP to a whole process group. SIGHUP terminates none of the executor's processes.
//! For executord see also `tls/revoked.rs`, for the signer `identity/keys.rs`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::sync::{Mutex, mpsc};

use executor_proto::v1::{Action, DownloadAction, RunRequest, SerialAction};
use integration::api::exit;
use integration::daemon::{Setup, kill};
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::rootfs::Rootfs;
use integration::web::{WebAnswer, WebServer};
use integration::{cli, host, wait};

const SIGHUP: i32 = 1;

/// Returns the arguments of a process's command line.
fn words(pid: i32) -> Vec<String> {
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split('\0').map(str::to_owned).collect()
}

#[test]
fn hangup_ends_no_process() {
    let config = "[warm_pool]\nsize = 1\n[transfers]\nallowed = [\"127.0.0.1\"]\nattempts = 1\n";
    let (daemon, rootfs) = (Setup::default().config(config).start(), Rootfs::busybox());
    let (open, gate) = mpsc::channel();
    let gate = Mutex::new(gate);
    let server = WebServer::start(move |_, _| {
        gate.lock().unwrap().recv().unwrap();
        WebAnswer::ok(b"content")
    });
    let download = DownloadAction { from: server.url("/x"), to: "/tmp/x".into(), ..DownloadAction::default() };
    let actions = vec![Action { download: Some(download), ..Action::default() }, sh("cat /tmp/x").action.unwrap()];
    let tree = Action { serial: Some(SerialAction { actions, ..SerialAction::default() }), ..Action::default() };
    daemon.api.started(RunRequest { action: Some(tree), ..RunRequest::default() }.id("tree").memory(64 << 20));
    daemon.api.started(sleeper("on"));
    let mut executed =
        cli::command(Some(&daemon.socket()), &["exec", "-i", "on", "--", "sh", "-c", "echo up; read x; exit 7"]);
    let mut executed = executed.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    executed.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
    wait::until("the server receives the request", || (!server.requests().is_empty()).then_some(()));
    daemon.api.wait_until_warm_pool_is_ready();
    let launcher = daemon.launcher().unwrap();
    // The first two arguments of these processes are the program and the role.
    let ours = wait::until("each role has a process", || {
        let forked = host::descendants(launcher).into_iter().filter(|pid| words(*pid)[0] == "executor-launcher");
        let forked: Vec<i32> = forked.collect();
        let roles: BTreeSet<String> = forked.iter().map(|pid| words(*pid)[1].clone()).collect();
        roles.into_iter().eq(["exec", "shim", "steps", "warm"].map(str::to_owned)).then_some(forked)
    });
    let worker =
        host::descendants(daemon.pid()).into_iter().filter(|pid| words(*pid).contains(&"transfer-worker".into()));
    let all: Vec<i32> = ours.into_iter().chain(worker).chain([launcher, daemon.pid()]).collect();
    all.iter().for_each(|pid| kill(*pid, SIGHUP));
    open.send(()).unwrap();
    assert_eq!(
        exit(&daemon.api.wait("tree").unwrap()),
        Ok(0),
        "SIGHUP does not terminate the shim, the starter of steps or the worker"
    );
    executed.stdin.take().unwrap().write_all(b"x\n").unwrap();
    assert_eq!(
        executed.wait().unwrap().code(),
        Some(7),
        "SIGHUP does not terminate the supervisor of the executed process"
    );
    let used = daemon.api.info().warm_pool.unwrap().used;
    daemon.api.run_to_end(sh("true").rootfs(&rootfs.reference()));
    assert_eq!(daemon.api.info().warm_pool.unwrap().used, used + 1, "a warm container is used");
    assert_eq!(daemon.launcher(), Some(launcher));
    daemon.api.stop("on", Some(0)).unwrap();
    assert_eq!(exit(&daemon.api.wait("on").unwrap()), Err(9));
}
