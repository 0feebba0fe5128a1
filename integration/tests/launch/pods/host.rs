//! Pods and containers in the host's PID and IPC namespaces (CRI rules G3 and C17 of docs/guides/cri-rules.md). Each
//! claim is compared with a control without the option.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use executor_proto::v1::{Capabilities, CreatePodRequest, RunRequest, UserNamespace};
use integration::api::exit;
use integration::daemon::{Setup, has_ended, kill};
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::wait;
use tonic::Status;
use tonic_types::StatusExt as _;

use super::{asked, create, delete, in_pod, namespace, pods, script_output};

const OPEN: &str = "[policy]\nallow_host_userns = true\nallow_host_pid = true\nallow_host_ipc = true\n\
     capabilities_allowed = ['CAP_SYS_PTRACE']\n";
/// Prints the command lines of all processes.
pub(super) const LIST: &str = "for one in /proc/[0-9]*; do tr '\\0' ' ' <$one/cmdline; echo; done 2>/dev/null";
const USER: u32 = 12_345;

fn violations(status: &Status) -> Vec<String> {
    let details = status.get_details_bad_request().unwrap_or_else(|| panic!("no BadRequest: {status:?}"));
    details.field_violations.into_iter().map(|violation| violation.field).collect()
}

fn hosts(request: RunRequest) -> RunRequest {
    RunRequest { user_namespace: UserNamespace::Host.into(), host_pid: true, host_ipc: true, ..request }
}

fn hosts_pod(id: &str) -> CreatePodRequest {
    CreatePodRequest { user_namespace: UserNamespace::Host.into(), host_pid: true, host_ipc: true, ..asked(id) }
}

/// A process of the host with a variable, killed when dropped.
struct HostProcess(Child);

impl HostProcess {
    fn start(seconds: &str) -> Self {
        let mut command = Command::new("sleep");
        command.arg(seconds).env("KEY", "HOST-SECRET").uid(USER).gid(USER).stdin(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns true if a process of the host executes `sleep` with this argument.
pub(super) fn is_running(seconds: &str) -> bool {
    let command = format!("sleep\0{seconds}\0").into_bytes();
    let mut entries = fs::read_dir("/proc").unwrap().flatten();
    entries.any(|entry| fs::read(entry.path().join("cmdline")).is_ok_and(|line| line == command))
}

fn await_end(seconds: &str) {
    wait::until("the leftover process has exited", || (!is_running(seconds)).then_some(()));
}

#[test]
fn host_pid_shows_processes_and_nothing_more() {
    let daemon = Setup::default().config(OPEN).start();
    let before = daemon.footprint();
    let host = HostProcess::start("76543");
    create(&daemon, &hosts_pod("p"));
    create(&daemon, &asked("apart"));
    assert!(script_output(&daemon, in_pod("p", sh(LIST))).contains("sleep 76543"));
    assert!(script_output(&daemon, hosts(sh(LIST))).contains("sleep 76543"), "a container without a pod");
    assert!(!script_output(&daemon, in_pod("apart", sh(LIST))).contains("sleep 76543"), "control failed");
    let users = RunRequest { user_namespace: UserNamespace::Host.into(), ..sh(LIST) };
    assert!(!script_output(&daemon, users).contains("sleep 76543"), "the control with the host's ids");
    let member = daemon.api.started(in_pod("p", sleeper("member")));
    for kind in ["pid", "ipc", "user"] {
        let own = fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
        assert_eq!(namespace(&member, kind), own, "{kind}");
    }
    for kind in ["mnt", "net", "uts", "cgroup"] {
        assert_ne!(namespace(&member, kind), fs::read_link(format!("/proc/self/ns/{kind}")).unwrap(), "{kind}");
    }
    let spec = member.spec.unwrap();
    assert!(spec.host_pid && spec.host_ipc && spec.warnings.is_empty(), "{:?}", spec.warnings);

    // Only the Landlock domain keeps the container from reading a host process of the same user.
    let read = sh(&format!("tr '\\0' '\\n' </proc/{}/environ", host.0.id())).user(&USER.to_string());
    let seen = script_output(&daemon, in_pod("p", read.clone()));
    assert!(seen.contains("Permission denied") && !seen.contains("HOST-SECRET"), "{seen}");
    let add = vec!["SYS_PTRACE".to_owned()];
    let tracing = RunRequest { capabilities: Some(Capabilities { add, drop: vec![] }), ..read };
    assert!(script_output(&daemon, in_pod("p", tracing)).contains("HOST-SECRET"), "control failed");

    // SIGTERM terminates a first process that is not PID 1 immediately.
    daemon.api.stop("member", None).unwrap();
    assert_eq!(exit(&daemon.api.wait("member").unwrap()), Err(15));
    daemon.api.delete("member", true).unwrap();
    for pod in ["p", "apart"] {
        delete(&daemon, pod, true).unwrap();
    }
    drop(host);
    daemon.wait_until_back_at(&before);
}

#[test]
fn host_pid_leftovers_die_with_container() {
    let mut daemon = Setup::default().config(OPEN).start();
    let before = daemon.footprint();
    let leaves =
        |seconds: &str, last: &str| hosts(sh(&format!("(trap '' TERM HUP; exec setsid sleep {seconds}) & {last}")));
    // The first process exits by itself.
    daemon.api.run_to_end(leaves("4243", "sleep 0.3").id("ends").file("a", b"secret"));
    assert!(!is_running("4243"));
    let wipe = daemon.api.get("ends").unwrap().result.unwrap().wipe.unwrap();
    assert_eq!((wipe.files, wipe.verified), (1, true));
    // The containers exit in three ways: by a stop, by kill -9 of the shim, and by kill -9 of shim, launcher and
    // executord.
    for (id, seconds) in [("stopped", "4244"), ("shim", "4245"), ("all", "4246")] {
        daemon.api.started(leaves(seconds, "exec sleep 100000").id(id));
        wait::until("control: the process runs", || is_running(seconds).then_some(()));
    }
    daemon.api.stop("stopped", None).unwrap();
    daemon.api.wait("stopped").unwrap();
    assert!(!is_running("4244") && is_running("4245"), "control: the process of another container runs");
    kill(daemon.record("shim").shim.pid, 9);
    daemon.api.wait("shim").unwrap();
    assert!(!is_running("4245"));
    let (shim, launcher) = (daemon.record("all").shim.pid, daemon.launcher().unwrap());
    daemon.kill();
    [launcher, shim].into_iter().for_each(|pid| kill(pid, 9));
    assert!(is_running("4246"), "control: none of its supervisors is left");
    wait::until("the launcher and the shim have exited", || [launcher, shim].into_iter().all(has_ended).then_some(()));
    daemon.start_again();
    wait::until("the exit of the container is known", || daemon.api.wait("all").ok());
    await_end("4246");
    for id in ["ends", "stopped", "shim", "all"] {
        daemon.api.delete(id, true).unwrap();
    }
    daemon.wait_until_back_at(&before);
}

/// A System V shared memory segment of the host, removed when dropped.
struct Segment(String);

impl Segment {
    fn new() -> Self {
        let made = Command::new("ipcmk").args(["-M", "4096"]).output().unwrap();
        let text = String::from_utf8(made.stdout).unwrap();
        Self(text.split_whitespace().last().unwrap().to_owned())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let _ = Command::new("ipcrm").args(["-m", &self.0]).output();
    }
}

/// A file in the host's /dev/shm, removed when dropped.
struct ShmFile(PathBuf);

impl Drop for ShmFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn host_ipc_shares_segments_and_shm() {
    let daemon = Setup::default().config(OPEN).start();
    let before = daemon.footprint();
    let segment = Segment::new();
    let file = ShmFile(PathBuf::from(format!("/dev/shm/executor-test-{}", std::process::id())));
    fs::write(&file.0, "of the host\n").unwrap();
    create(&daemon, &CreatePodRequest { host_pid: false, ..hosts_pod("p") });
    create(&daemon, &CreatePodRequest { user_namespace: UserNamespace::Host.into(), ..asked("apart") });
    let script = format!(
        "awk '$2 == {} {{ print \"segment\" }}' /proc/sysvipc/shm; cat {path}; echo changed >{path}",
        segment.0,
        path = file.0.display()
    );
    let apart = script_output(&daemon, in_pod("apart", sh(&script)));
    assert!(
        !apart.contains("segment") && !apart.contains("of the host"),
        "control failed: the pod sees objects of the host: {apart}"
    );
    assert_eq!(fs::read_to_string(&file.0).unwrap(), "of the host\n", "control failed");
    assert_eq!(script_output(&daemon, in_pod("p", sh(&script))), "segment\nof the host\n");
    assert_eq!(fs::read_to_string(&file.0).unwrap(), "changed\n");
    assert_eq!(script_output(&daemon, hosts(sh(&script))), "segment\nchanged\n", "a container without a pod");
    for pod in ["p", "apart"] {
        delete(&daemon, pod, true).unwrap();
    }
    assert!(file.0.exists(), "the host's files stay");
    drop((segment, file));
    daemon.wait_until_back_at(&before);
}

#[test]
fn host_namespaces_need_policy_and_host_ids() {
    let closed = Setup::default().config("[policy]\nallow_host_userns = true\n").start();
    let refused = closed.api.run(hosts(sh("true"))).unwrap_err();
    assert_eq!(violations(&refused), ["host_pid", "host_ipc"]);
    let text = format!("{refused:?}");
    assert!(text.contains("allow_host_pid") && text.contains("allow_host_ipc"), "{text}");
    let text = closed.api.block_on(pods(&closed).create(&hosts_pod("p"))).unwrap_err().to_string();
    assert!(text.contains("allow_host_pid") && text.contains("allow_host_ipc"), "{text}");
    let open = Setup::default().config(OPEN).start();
    let own = RunRequest { user_namespace: UserNamespace::Own.into(), ..hosts(sh("true")) };
    assert_eq!(violations(&open.api.run(own).unwrap_err()), ["host_pid", "host_ipc"]);
    let sized = RunRequest { shm_bytes: 1 << 20, init: true, ..hosts(sh("true")) };
    let fields = violations(&open.api.run(sized).unwrap_err());
    assert!(fields.contains(&"shm_bytes".to_owned()) && fields.contains(&"init".to_owned()), "{fields:?}");
    let text = CreatePodRequest { share_processes: true, ..hosts_pod("p") };
    let text = open.api.block_on(pods(&open).create(&text)).unwrap_err().to_string();
    assert!(text.contains("share_processes"), "{text}");
    open.api.run_to_end(hosts(sh("true")).id("control"));
}
