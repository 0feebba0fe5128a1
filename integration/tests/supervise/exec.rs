//! Tests processes that clients execute in running containers.

mod archive;
mod attach;
mod attacks;
mod by_hand;
mod faults;
mod likeness;
mod residue;
mod terminal;

use executor_proto::v1::exec_request::Part;
use executor_proto::v1::{EnvironmentVariable, ExecStart};
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::rootfs::Rootfs;
use integration::streams::{Executed, executed, script, start};
use integration::wait;
use tonic::Code;

/// Starts a daemon with a sleeping container.
pub(crate) fn sleeping(id: &str) -> Daemon {
    let daemon = Daemon::start();
    daemon.api.started(sleeper(id));
    daemon
}

#[test]
fn exec_exit_status_is_reported() {
    let daemon = sleeping("c");
    for (text, exit) in [("exit 0", Ok(0)), ("exit 41", Ok(41)), ("kill -9 $$", Err(9)), ("kill -15 $$", Err(15))] {
        assert_eq!(executed(&daemon.api, script("c", text)).unwrap().exit, Some(exit), "{text}");
    }
    let both = executed(&daemon.api, script("c", "echo out; echo err >&2; cat")).unwrap();
    assert_eq!((&*both.stdout, &*both.stderr), (&b"out\n"[..], &b"err\n"[..]), "the input of the process is empty");
}

#[test]
fn unexecutable_program_is_reported_with_errno() {
    let daemon = sleeping("c");
    for (path, errno) in [("/nope", 2), ("nope", 2), ("/etc/passwd", 13), ("/tmp", 13)] {
        let failure = executed(&daemon.api, start("c", path, &[])).unwrap().failure.unwrap();
        assert!(failure.errno == errno && failure.message.contains(path), "{path}: {failure:?}");
    }
    let nowhere = ExecStart { dir: "/etc/passwd".into(), ..script("c", "true") };
    let failure = executed(&daemon.api, nowhere).unwrap().failure.unwrap();
    assert!(failure.errno == 20 && failure.message.contains("chdir /etc/passwd"), "{failure:?}");
}

#[test]
fn invalid_requests_are_refused_by_field() {
    let daemon = sleeping("c");
    let refused = |start: ExecStart| executed(&daemon.api, start).err().unwrap();
    assert_eq!(refused(script("no-such", "true")).code(), Code::NotFound);
    let bad = ExecStart { user: "no/body".into(), dir: "x".into(), ..start("c", "", &[]) };
    let reported = refused(bad);
    assert_eq!(reported.code(), Code::InvalidArgument);
    for field in ["start.path", "start.user", "start.dir"] {
        assert!(reported.message().contains(field), "{reported}");
    }
    let unknown = refused(ExecStart { user: "nosuchuser".into(), ..script("c", "true") });
    assert_eq!(unknown.code(), Code::FailedPrecondition);
    assert!(unknown.message().contains("nosuchuser"), "{unknown}");
    daemon.api.stop("c", Some(0)).unwrap();
    daemon.api.wait("c").unwrap();
    assert_eq!(refused(script("c", "true")).code(), Code::FailedPrecondition);
}

#[test]
fn exec_without_allow_exec_is_refused() {
    let daemon = Setup::default().config("[policy]\nallow_exec = false\n").start();
    daemon.api.started(sleeper("c"));
    let reported = executed(&daemon.api, script("c", "true")).err().unwrap();
    assert!(reported.code() == Code::InvalidArgument && reported.message().contains("allow_exec"), "{reported}");
}

/// An executed process has PATH, HOME and the requested variables. It has no variables of the container's own process,
/// because these may be secrets.
#[test]
fn exec_environment_excludes_container_variables() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let main = sh("echo main=$SECRET,$OPEN; sleep 100000").id("c").rootfs(&rootfs.reference());
    daemon.api.started(main.env("OPEN", "seen").secret_env("SECRET", "canary-0123456789"));
    wait::until("the container prints", || daemon.api.logs_so_far("c").contains("main=").then_some(()));
    let own = EnvironmentVariable { name: "OWN".into(), value: "1".into(), ..EnvironmentVariable::default() };
    let reported =
        executed(&daemon.api, ExecStart { env: vec![own], ..start("c", "/bin/busybox", &["env"]) }).unwrap().text();
    let mut names: Vec<&str> = reported.lines().filter_map(|line| line.split('=').next()).collect();
    names.sort_unstable();
    assert_eq!(names, ["HOME", "OWN", "PATH"], "{reported}");
    let dir = |start: ExecStart| executed(&daemon.api, start).unwrap().text();
    assert_eq!(dir(script("c", "pwd")), "/\n");
    assert_eq!(dir(ExecStart { dir: "/tmp".into(), ..script("c", "pwd") }), "/tmp\n");
}

#[test]
fn ten_megabytes_go_in_and_come_out() {
    let daemon = sleeping("c");
    let mut cat = Executed::start(&daemon.api, ExecStart { stdin: true, ..start("c", "/bin/cat", &[]) }).unwrap();
    let all: Vec<u8> = (0..10_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (mut sent, chunk) = (0, 100_000);
    while cat.stdout.len() < all.len() {
        // Send small portions, so that neither side waits for the other.
        if sent < all.len() && sent - cat.stdout.len() <= chunk {
            cat.send_input(&all[sent..sent + chunk]);
            sent += chunk;
        } else {
            assert!(cat.read_message().unwrap());
        }
    }
    assert!(cat.exit.is_none(), "cat waits for more input");
    cat.end_input();
    let cat = cat.end().unwrap();
    assert!(cat.stdout == all && cat.exit == Some(Ok(0)));
}

/// If the process reads none of its input, a signal is still delivered.
#[test]
fn signal_is_delivered_despite_unread_input() {
    let daemon = sleeping("c");
    let deaf = "trap 'echo usr1; exit 3' USR1; echo ready; while :; do sleep 0.01; done";
    let mut process = Executed::start(&daemon.api, ExecStart { stdin: true, ..script("c", deaf) }).unwrap();
    process.until("ready");
    for _ in 0..4 {
        process.send_input(&[b'x'; 100_000]);
    }
    process.send(Part::Signal(10));
    let process = process.end().unwrap();
    assert_eq!((process.text().as_str(), process.exit), ("ready\nusr1\n", Some(Ok(3))));
}

/// If a client closes its half of the stream, the process's input ends, and the client still receives the output.
#[test]
fn half_closed_client_still_receives_output() {
    let daemon = sleeping("c");
    let wc = ExecStart { stdin: true, ..script("c", "wc -c; exit 5") };
    let mut process = Executed::start(&daemon.api, wc).unwrap();
    process.send_input(b"12345");
    process.close();
    let process = process.end().unwrap();
    assert_eq!((process.text().trim(), process.exit), ("5", Some(Ok(5))));
}

#[test]
fn exec_is_limited_to_64_processes() {
    let daemon = sleeping("c");
    let sleep = || Executed::start(&daemon.api, start("c", "/bin/sleep", &["1000"]));
    let all: Vec<Executed> = (0..64).map(|_| sleep().unwrap()).collect();
    let reported = sleep().err().unwrap();
    assert!(reported.code() == Code::ResourceExhausted && reported.message().contains("64"), "{reported}");
    drop(all);
    wait::until("the processes have exited", || sleep().ok());
}

/// Executed processes count against the container's process limit.
#[test]
fn containers_limits_hold() {
    let daemon = Daemon::start();
    let mut request = sleeper("c");
    request.limits.get_or_insert_default().pids = 2;
    daemon.api.started(request);
    let reported = executed(&daemon.api, script("c", "true")).err().unwrap();
    assert!(reported.code() == Code::ResourceExhausted && reported.message().contains("process limit"), "{reported}");
}
