//! If any process is killed, an executed process remains only in its container, and exits with the container at the
//! latest.

use executor_proto::v1::exec_request::Part as ToExecuted;
use executor_proto::v1::{ExecDetach, ExecStart};
use integration::api::{exit, pid};
use integration::daemon::{Daemon, has_ended, kill};
use integration::host;
use integration::request::{RequestBuilder as _, program, sleeper};
use integration::streams::{Executed, executed, script, start};
use integration::supervised::{Part, Supervised};
use integration::wait;
use tonic::Code;

use crate::exec::sleeping;

/// Script that prints the pid of its child and waits. Both processes ignore SIGHUP, the first signal to the process of
/// a disconnected client, and SIGTERM.
const STUBBORN: &str = "trap '' HUP TERM; sleep 100000 & echo $!; wait";

fn supervisors(launcher: i32) -> Vec<i32> {
    let is =
        |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "executor-exec\n");
    host::descendants(launcher).into_iter().filter(is).collect()
}

/// Returns host pids of a process and its children.
fn with_children(pid: i32) -> Vec<i32> {
    [vec![pid], host::descendants(pid)].concat()
}

fn all_end(what: &str, pids: &[i32]) {
    assert!(!pids.is_empty(), "{what}");
    wait::until(what, || pids.iter().all(|pid| has_ended(*pid)).then_some(()));
}

fn stubborn(daemon: &Daemon, terminal: bool) -> (Executed, Vec<i32>) {
    let mut process =
        Executed::start(&daemon.api, ExecStart { terminal, ..script("c", STUBBORN) }).expect("a running process");
    process.until("\n");
    let all = with_children(process.pid);
    assert_eq!(all.len(), 2, "{all:?}");
    (process, all)
}

/// If a client disconnects, its process gets SIGHUP. If the process ignores SIGHUP, it gets SIGKILL.
#[test]
fn disconnected_client_ends_its_process() {
    let daemon = sleeping("c");
    for terminal in [false, true] {
        let (process, all) = stubborn(&daemon, terminal);
        drop(process);
        all_end("the process and its child have exited", &all);
    }
    let gentle = Executed::start(&daemon.api, start("c", "/bin/sleep", &["100000"])).unwrap();
    let all = with_children(gentle.pid);
    drop(gentle);
    all_end("a process that handles the first signal", &all);
    let launcher = daemon.launcher().unwrap();
    wait::until("no supervisor is left", || supervisors(launcher).is_empty().then_some(()));
}

/// A detached process, detached at the start or later, continues without its client, and unread output does not block
/// it. It is killed with its container.
#[test]
fn detached_process_continues_without_client() {
    let daemon = sleeping("c");
    // The output is larger than the buffer of a pipe or a terminal.
    let busy = |mark: &str| format!("head -c 1000000 /dev/zero | tr '\\0' x; echo >/tmp/{mark}; exec sleep 100000");
    let begun = ExecStart { detached: true, ..script("c", &busy("begun")) };
    let begun = Executed::start(&daemon.api, begun).unwrap();
    let mut all = with_children(begun.pid);
    assert_eq!(begun.end().unwrap().exit, None, "the call returns immediately");
    let later = Executed::start(&daemon.api, ExecStart { terminal: true, ..script("c", &busy("later")) }).unwrap();
    all.push(later.pid);
    later.send(ToExecuted::Detach(ExecDetach {}));
    assert_eq!(later.end().unwrap().exit, None);
    for mark in ["begun", "later"] {
        let there = || executed(&daemon.api, script("c", &format!("test -e /tmp/{mark}"))).unwrap().exit == Some(Ok(0));
        wait::until("the detached process has written everything", || there().then_some(()));
    }
    assert!(!has_ended(all[0]) && all.last().is_some_and(|pid| !has_ended(*pid)));
    daemon.api.stop("c", Some(0)).unwrap();
    all_end("detached processes", &all);
    let launcher = daemon.launcher().unwrap();
    wait::until("no supervisor is left", || supervisors(launcher).is_empty().then_some(()));
}

#[test]
fn container_exit_kills_exec() {
    let daemon = sleeping("c");
    let (process, all) = stubborn(&daemon, false);
    daemon.api.stop("c", Some(0)).unwrap();
    assert_eq!(exit(&daemon.api.wait("c").unwrap()), Err(9));
    assert_eq!(process.end().unwrap().exit, Some(Err(9)));
    all_end("the container's processes", &all);
}

/// If a container exits during an execution, the execution is refused, or the process runs and is killed. Nothing is
/// left.
#[test]
fn exec_in_exiting_container_is_refused_cleanly() {
    let daemon = Daemon::start();
    for round in 0..5 {
        let id = format!("c{round}");
        daemon.api.started(program("/bin/sleep", &["0.3"]).id(&id));
        let mut refusals = 0;
        while refusals < 3 {
            match executed(&daemon.api, script(&id, "true")) {
                Ok(done) => assert!(done.exit == Some(Ok(0)) || done.exit == Some(Err(9)) || done.failure.is_some()),
                Err(reported) => {
                    assert_eq!(reported.code(), Code::FailedPrecondition, "{reported}");
                    refusals += 1;
                }
            }
        }
        assert_eq!(exit(&daemon.api.wait(&id).unwrap()), Ok(0));
    }
}

#[test]
fn killed_supervisor_ends_its_process() {
    let daemon = sleeping("c");
    let (process, all) = stubborn(&daemon, false);
    let found = supervisors(daemon.launcher().unwrap());
    assert_eq!(found.len(), 1);
    kill(found[0], 9);
    wait::until("the process has exited", || has_ended(all[0]).then_some(()));
    assert_eq!(process.end().err().unwrap().code(), Code::Unavailable);
    // The launcher kills the children of the killed process.
    all_end("the process and its child have exited", &all);
    assert_eq!(executed(&daemon.api, script("c", "exit 4")).unwrap().exit, Some(Ok(4)));
}

#[test]
fn executord_that_is_killed_leaves_no_process() {
    let mut node = Supervised::start();
    let container = pid(&node.api.started(sleeper("c")));
    let process = Executed::start(&node.api, script("c", STUBBORN)).unwrap();
    let shown =
        wait::until("the process has its child", || Some(with_children(process.pid)).filter(|all| all.len() == 2));
    node.kill(Part::Executord);
    all_end("the process", &shown);
    wait::until("the supervisor has exited", || supervisors(node.pid(Part::Launcher)).is_empty().then_some(()));
    node.revive().unwrap();
    assert!(!has_ended(container), "the container runs on");
    assert_eq!(executed(&node.api, script("c", "exit 4")).unwrap().exit, Some(Ok(4)));
}

/// If the launcher is killed, an executed process and its supervisor continue until the next launcher starts.
#[test]
fn killed_launcher_leaves_no_exec_process() {
    let mut node = Supervised::start();
    node.api.started(sleeper("c"));
    let mut process = Executed::start(&node.api, ExecStart { stdin: true, ..start("c", "/bin/cat", &[]) }).unwrap();
    node.kill(Part::Launcher);
    process.send_input(b"still here\n");
    process.until("still here");
    let all = with_children(process.pid);
    node.revive().unwrap();
    let reported = process.end();
    assert!(reported.as_ref().is_err_and(|reported| reported.code() == Code::Unavailable), "{:?}", reported.err());
    all_end("the process", &all);
    assert_eq!(executed(&node.api, script("c", "exit 4")).unwrap().exit, Some(Ok(4)));
}
