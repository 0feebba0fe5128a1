//! The executor's processes are killed without warning. The tests check the outcome for the container, and that nothing
//! is left.

use std::os::fd::AsFd;
use std::path::Path;

use executor_core::lifecycle::State;
use executor_core::plan::Plan;
use executor_core::protocol::{ShimCall, Stop};
use executor_core::record::{Exit, FailureKind};
use executor_core::validate::{Draft, Policy, validate};
use executor_sys::process::{pidfd, pidfd_signal};
use executor_sys::seqpacket::Seqpacket;
use integration::footprint;
use integration::launcher::{Launcher, Payload, Shim};
use integration::rootfs::Rootfs;
use integration::{host, wait};

const SIGTERM: i32 = nix::sys::signal::Signal::SIGTERM as i32;
const SIGSTOP: i32 = nix::sys::signal::Signal::SIGSTOP as i32;
const SIGCONT: i32 = nix::sys::signal::Signal::SIGCONT as i32;
const SECRET: &[u8] = b"canary-of-the-lost-1c0ffee";

fn plan(id: &str) -> Plan {
    let files = vec![("f".to_owned(), "a", SECRET.len() as u64).into()];
    let draft = Draft { id, path: "/bin/sleep", memory_bytes: 64 << 20, files, ..Draft::default() };
    validate(&draft, &Policy::default()).unwrap()
}

fn start(launcher: &Launcher, id: &str) -> Shim {
    let payload = Payload { args: vec![b"1000"], files: vec![SECRET], ..Payload::default() };
    let shim = launcher.launch(&plan(id), &payload).unwrap();
    shim.reach(State::Running).unwrap();
    shim
}

fn kill(pid: i32) {
    pidfd_signal(pidfd(pid).unwrap().as_fd(), 9).unwrap();
}

fn wait_until_gone(pid: i32) {
    wait::until("the process has exited", || {
        host::status(pid, "State").is_none_or(|state| state.starts_with('Z')).then_some(())
    });
}

/// Opens the secret file through the container's init. The launcher must overwrite this file.
fn open_secret(launcher: &Launcher, id: &str) -> std::fs::File {
    let init = launcher.record(id).unwrap().prepared.unwrap().init.pid;
    std::fs::File::open(format!("/proc/{init}/root/etc/cf-service-bindings/a")).unwrap()
}

/// If a shim is killed, the launcher kills its container, overwrites the files through the launcher's own handle on the
/// secret file system, and reports the exit status as unknown. A descriptor that was opened earlier reads zeros. As a
/// control, the descriptor reads the secret before the kill.
#[test]
fn killed_shim_is_cleaned_up_by_launcher() {
    let launcher = Launcher::start(&[]);
    let before = footprint::inventory_of(&launcher.run_dir());
    let _shim = start(&launcher, "lost");
    let record = launcher.record("lost").unwrap();
    let kept = open_secret(&launcher, "lost");
    let read = |length| {
        let mut bytes = vec![1; length];
        std::os::unix::fs::FileExt::read_exact_at(&kept, &mut bytes, 0).unwrap();
        bytes
    };
    assert_eq!(read(SECRET.len()), SECRET);
    kill(record.shim.pid);
    let exit = launcher.exit("lost");
    assert_eq!(exit.failure.unwrap().kind, FailureKind::SupervisorLost);
    let wipe = exit.wipe.unwrap();
    assert_eq!((wipe.files, wipe.bytes, &*wipe.by), (1, SECRET.len() as u64, "launcher"));
    assert_eq!(read(SECRET.len()), vec![0; SECRET.len()]);
    wait_until_gone(record.prepared.unwrap().init.pid);
    launcher.wait_until_removed("lost");
    assert_eq!(footprint::inventory_of(&launcher.run_dir()), before);
    start(&launcher, "next");
}

/// Containers survive a killed launcher. The next launcher requests the handles on their secret files from the shims,
/// and the containers exit normally.
#[test]
fn containers_survive_killed_launcher() {
    let mut launcher = Launcher::start(&[]);
    let shim = start(&launcher, "on");
    let init = launcher.record("on").unwrap().prepared.unwrap().init.pid;
    launcher.kill();
    assert_eq!(host::status(init, "Name").as_deref(), Some("sleep"));
    launcher.start_again();
    // Now the shim is killed. Only the handle of the second launcher can be used for the wipe.
    let kept = open_secret(&launcher, "on");
    drop(shim);
    kill(launcher.record("on").unwrap().shim.pid);
    let exit = launcher.exit("on");
    assert_eq!(exit.wipe.unwrap().by, "launcher");
    let mut bytes = vec![1; SECRET.len()];
    std::os::unix::fs::FileExt::read_exact_at(&kept, &mut bytes, 0).unwrap();
    assert_eq!(bytes, vec![0; SECRET.len()]);
    wait_until_gone(init);
}

#[test]
fn container_exits_cleanly_without_launcher() {
    let mut launcher = Launcher::start(&[]);
    let shim = start(&launcher, "alone");
    launcher.kill();
    shim.ask(ShimCall::Stop(Stop { grace_ms: 0, signal: 0 }));
    shim.reach(State::Completed).unwrap();
    let exit = launcher.exit("alone");
    assert_eq!((exit.exit, exit.wipe.unwrap().by.as_str()), (Some(Exit::Signal(9)), "shim"));
    launcher.start_again();
    assert!(!launcher.run_dir().join("containers/alone").exists());
}

/// If a container has lost its launcher and its shim, the next launcher kills the container, overwrites the files
/// through the container's own mounts, and removes everything.
#[test]
fn container_that_lost_everything_is_swept() {
    let mut launcher = Launcher::start(&[]);
    let before = footprint::inventory_of(&launcher.run_dir());
    let _shim = start(&launcher, "swept");
    let record = launcher.record("swept").unwrap();
    let init = record.prepared.unwrap().init.pid;
    let kept = open_secret(&launcher, "swept");
    launcher.kill();
    kill(record.shim.pid);
    wait_until_gone(record.shim.pid);
    assert_eq!(
        host::status(init, "Name").as_deref(),
        Some("sleep"),
        "the container runs without the executor's processes"
    );
    launcher.start_again();
    let exit = launcher.exit("swept");
    assert_eq!(exit.failure.unwrap().kind, FailureKind::SupervisorLost);
    assert_eq!(exit.wipe.unwrap().bytes, SECRET.len() as u64);
    let mut bytes = vec![1; SECRET.len()];
    std::os::unix::fs::FileExt::read_exact_at(&kept, &mut bytes, 0).unwrap();
    assert_eq!(bytes, vec![0; SECRET.len()]);
    wait_until_gone(init);
    wait::until("no resource of the container is left", || {
        (footprint::inventory_of(&launcher.run_dir()) == before).then_some(())
    });
}

/// If a container renames the directory of an individually mounted file, the file is still wiped: the next launcher
/// finds it.
#[test]
fn moved_secret_of_swept_container_is_wiped() {
    let mut launcher = Launcher::start(&[]);
    let rootfs = Rootfs::busybox();
    let reference = rootfs.reference();
    let files = vec![("f[0]".to_owned(), "/root/.kube/config", SECRET.len() as u64).into()];
    let draft =
        Draft { id: "moved", path: "/bin/sh", rootfs: &reference, memory_bytes: 64 << 20, files, ..Draft::default() };
    let plan = validate(&draft, &Policy::default()).unwrap();
    let script = b"mv /root/.kube '/root/a b' && echo moved; exec sleep 1000";
    let payload = Payload { args: vec![b"-c", script], files: vec![SECRET], ..Payload::default() };
    let shim = launcher.launch(&plan, &payload).unwrap();
    shim.reach(State::Running).unwrap();
    wait::until("the container has moved the directory", || launcher.log("moved").contains("moved").then_some(()));
    let record = launcher.record("moved").unwrap();
    let init = record.prepared.unwrap().init.pid;
    let kept = std::fs::File::open(format!("/proc/{init}/root/root/a b/config")).unwrap();
    launcher.kill();
    kill(record.shim.pid);
    wait_until_gone(record.shim.pid);
    launcher.start_again();
    assert_eq!(launcher.exit("moved").wipe.unwrap().bytes, SECRET.len() as u64);
    let mut bytes = vec![1; SECRET.len()];
    std::os::unix::fs::FileExt::read_exact_at(&kept, &mut bytes, 0).unwrap();
    assert_eq!(bytes, vec![0; SECRET.len()]);
    wait_until_gone(init);
}

/// A process of another user than root that may connect to a shim gets no handle. A process of an unrelated user gets
/// no response.
#[test]
fn shim_serves_no_unrelated_user() {
    let launcher = Launcher::start(&[]);
    let _shim = start(&launcher, "guarded");
    let socket = launcher.run_dir().join("containers/guarded/shim.sock");
    assert!(Seqpacket::connect(&socket).is_ok(), "control: root may");
    let status = std::process::Command::new("python3")
        .args(["-c", "import os,socket,sys\nos.setgid(65534); os.setuid(65534)\ns=socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\ntry:\n  s.connect(sys.argv[1])\nexcept PermissionError:\n  sys.exit(42)\n"])
        .arg(&socket)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(42));
}

/// If a shim gets SIGTERM, as every process does at a system shutdown, it stops its container gracefully, and wipes the
/// files before it exits.
#[test]
fn terminated_shim_stops_its_container_first() {
    let mut launcher = Launcher::start(&[]);
    let shim = start(&launcher, "down");
    let record = launcher.record("down").unwrap();
    let kept = open_secret(&launcher, "down");
    launcher.kill();
    pidfd_signal(pidfd(record.shim.pid).unwrap().as_fd(), SIGTERM).unwrap();
    shim.reach(State::Completed).unwrap();
    let exit = launcher.exit("down");
    assert!(exit.container.stopped && exit.failure.is_none() && exit.exit.is_some(), "{exit:?}");
    assert_eq!((exit.wipe.as_ref().unwrap().bytes, &*exit.wipe.unwrap().by), (SECRET.len() as u64, "shim"));
    let mut bytes = vec![1; SECRET.len()];
    std::os::unix::fs::FileExt::read_exact_at(&kept, &mut bytes, 0).unwrap();
    assert_eq!(bytes, vec![0; SECRET.len()]);
    wait_until_gone(record.shim.pid);
    launcher.start_again(); // removes resources that only a launcher can remove
}

/// If the machine loses power, a container is reported as stopped with its host, and without a receipt, because its
/// files were not overwritten. After a power loss the run directory (a tmpfs) is gone and the boot id has changed; the
/// test removes the directory and changes the boot id in the record.
#[test]
fn power_loss_is_reported_as_host_stopped() {
    let mut launcher = Launcher::start(&[]);
    let _shim = start(&launcher, "boot");
    let record = launcher.record("boot").unwrap();
    launcher.kill();
    kill(record.shim.pid);
    wait_until_gone(record.shim.pid);
    let init = record.prepared.unwrap().init.pid;
    kill(init);
    wait_until_gone(init);
    std::fs::remove_dir_all(launcher.run_dir().join("containers/boot")).unwrap();
    let path = launcher.state_dir().join("containers/boot/container.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let other = "00000000-0000-4000-8000-000000000000";
    assert!(text.contains(&record.shim.boot_id));
    std::fs::write(&path, text.replace(&record.shim.boot_id, other)).unwrap();
    launcher.start_again();
    let exit = launcher.exit("boot");
    assert_eq!(exit.failure.unwrap().kind, FailureKind::HostStopped);
    assert_eq!((exit.exit, exit.wipe), (None, None));
    start(&launcher, "next");
}

/// Starts a launcher whose watchdog timeout for shims is three seconds.
fn impatient(dir: &Path) -> Launcher {
    let path = dir.join("executor.toml");
    std::fs::write(&path, "[launcher]\nwatchdog_seconds = 3\n").unwrap();
    Launcher::start(&["--config", path.to_str().unwrap()])
}

/// When a launcher cleans up after a killed shim, it must not mistake a second launcher on the same run directory for a
/// leftover process and kill it. The second launcher reports that the directory is in use.
#[test]
fn starting_launcher_is_not_killed_as_orphan() {
    let launcher = Launcher::start(&[]);
    let second = wait::until("a second launcher is frozen while it starts", || {
        let mut child = launcher.spawn_second();
        let pid = child.id() as i32;
        let from_memory = |pid| {
            std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.to_string_lossy().starts_with("/memfd:"))
        };
        wait::until("the launcher runs from its memory file, or has exited", || {
            (from_memory(pid) || child.try_wait().unwrap().is_some()).then_some(())
        });
        let _ = pidfd_signal(pidfd(pid).ok()?.as_fd(), SIGSTOP);
        wait::until("the launcher is stopped, or has exited", || {
            host::status(pid, "State").is_none_or(|state| state.starts_with(['T', 'Z'])).then_some(())
        });
        child.try_wait().unwrap().is_none().then_some(child)
    });
    let _shim = start(&launcher, "lost");
    kill(launcher.record("lost").unwrap().shim.pid);
    assert_eq!(launcher.exit("lost").failure.unwrap().kind, FailureKind::SupervisorLost);
    pidfd_signal(pidfd(second.id() as i32).unwrap().as_fd(), SIGCONT).unwrap();
    let ended = second.wait_with_output().unwrap();
    let reported = String::from_utf8_lossy(&ended.stderr);
    assert!(
        ended.status.code().is_some() && reported.contains("another executor-launcher already serves"),
        "{}: {reported}",
        ended.status
    );
}

/// If a shim is frozen, the launcher kills it, cleans up its container and reports the kill. A later launcher does the
/// same. As a control, an idle shim is not killed.
#[test]
fn frozen_shim_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let mut launcher = impatient(dir.path());
    let _idle = start(&launcher, "idle");
    let idle = launcher.record("idle").unwrap().shim.pid;
    for id in ["frozen", "frozen-later"] {
        let _shim = start(&launcher, id);
        let kept = open_secret(&launcher, id);
        let record = launcher.record(id).unwrap();
        if id == "frozen-later" {
            launcher.kill();
            launcher.start_again();
        }
        pidfd_signal(pidfd(record.shim.pid).unwrap().as_fd(), SIGSTOP).unwrap();
        let exit = launcher.exit(id);
        let failure = exit.failure.unwrap();
        assert_eq!(failure.kind, FailureKind::SupervisorLost);
        assert!(failure.message.contains("has not responded"), "{failure:?}");
        assert_eq!(exit.wipe.unwrap().by, "launcher");
        let mut bytes = vec![1; SECRET.len()];
        std::os::unix::fs::FileExt::read_exact_at(&kept, &mut bytes, 0).unwrap();
        assert_eq!(bytes, vec![0; SECRET.len()]);
        wait_until_gone(record.prepared.unwrap().init.pid);
        wait_until_gone(record.shim.pid);
    }
    assert_eq!(launcher.record("idle").unwrap().shim.pid, idle);
    let waits = || host::status(idle, "State").is_some_and(|state| state.starts_with('S')).then_some(());
    wait::until("the shim of the idle container waits", waits);
}

/// A shim is killed after its process has exited, but before the shim has read the last output. This output is lost:
/// the exit code is known, and the log and the result report missing output. After a normal exit nothing is reported.
#[test]
fn output_lost_with_shim_is_reported() {
    const NOTICE: &str = " executor F the last output may be missing: the shim was lost";
    let launcher = Launcher::start(&[]);
    let script = "trap 'echo last; exit 3' TERM; echo up; while :; do sleep 0.05; done";
    for (id, kills) in [("missing", true), ("whole", false)] {
        let args = vec!["-c", script];
        let draft = Draft { id, path: "/bin/sh", args, memory_bytes: 64 << 20, ..Draft::default() };
        let plan = validate(&draft, &Policy::default()).unwrap();
        let payload = Payload { args: vec![b"-c", script.as_bytes()], ..Payload::default() };
        let shim = launcher.launch(&plan, &payload).unwrap();
        shim.reach(State::Running).unwrap();
        wait::until("the process is up", || launcher.log(id).contains("up").then_some(()));
        let record = launcher.record(id).unwrap();
        let init = record.prepared.unwrap().init.pid;
        let supervisor = pidfd(record.shim.pid).unwrap();
        if kills {
            pidfd_signal(supervisor.as_fd(), SIGSTOP).unwrap();
        }
        pidfd_signal(pidfd(init).unwrap().as_fd(), SIGTERM).unwrap();
        if kills {
            wait_until_gone(init);
            pidfd_signal(supervisor.as_fd(), 9).unwrap();
        }
        let exit = launcher.exit(id);
        assert_eq!((exit.exit, exit.output_incomplete), (Some(Exit::Code(3)), kills), "{id}");
        let log = launcher.log(id);
        assert_eq!(log.ends_with(NOTICE), kills, "{log}");
        assert_eq!(log.contains("stdout F last"), !kills, "{log}");
    }
}
