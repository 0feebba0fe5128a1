//! Executed processes and their descendants, including descendants in other sessions, are killed together: after a time
//! limit, a disconnect, and the exit of the program. See CRI rules G17 and C36, and CRI complaint X4, of
//! docs/guides/cri-rules.md.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use executor_proto::v1::{Check, Checks, ExecCheck, ExecStart, Limits, RunRequest, check::Kind};
use integration::daemon::{Daemon, Setup, has_ended, kill};
use integration::request::{RequestBuilder as _, sh};
use integration::streams::{Executed, executed, script};
use integration::{cli, footprint, host, wait};
use tonic::Code;

/// Script that ignores SIGHUP and SIGTERM, starts a process in another session and a child in its own session, and then
/// waits.
const TREE: &str = "trap '' HUP TERM; setsid sh -c 'while :; do sleep 1000; done' & sleep 1000 & sleep 1000";

/// Builds a request for a container with an init, which reaps orphans, and with a program that has one child.
fn container(id: &str) -> RunRequest {
    RunRequest { init: true, ..sh("sleep 100000 & echo up; wait").id(id) }
}

/// Starts executord without warm containers, whose processes would be counted.
fn without_warm_pool() -> Daemon {
    Setup::default().config("[warm_pool]\nsize = 0\n").start()
}

fn millis(millis: u64) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(Duration::from_millis(millis)).ok()
}

/// Returns the container's cgroup directories in all hierarchies.
fn cgroups(daemon: &Daemon) -> Vec<PathBuf> {
    footprint::cgroups(&daemon.setup().run_dir()).into_iter().collect()
}

/// Returns the cgroups of executed processes.
fn exec_cgroups(daemon: &Daemon) -> Vec<PathBuf> {
    let is_exec = |dir: &PathBuf| dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with("exec-"));
    cgroups(daemon).into_iter().filter(is_exec).collect()
}

/// Returns the pids of all processes of the daemon's containers.
fn pids(daemon: &Daemon) -> Vec<i32> {
    let mut pids: Vec<i32> = cgroups(daemon)
        .into_iter()
        .flat_map(|dir| {
            let procs = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            procs.lines().map(|pid| pid.parse().unwrap()).collect::<Vec<i32>>()
        })
        .collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// Checks that only these processes are left, and no cgroup of an executed process.
fn nothing_left(daemon: &Daemon, before: &[i32]) {
    assert_eq!(pids(daemon), before);
    assert_eq!(exec_cgroups(daemon), Vec::<PathBuf>::new());
}

#[test]
fn timed_out_execs_leave_nothing() {
    let daemon = without_warm_pool();
    daemon.api.up(container("c"));
    let before = pids(&daemon);
    assert!(before.len() >= 3, "init, shell and sleep: {before:?}");
    let start = || ExecStart { timeout: millis(1000), ..script("c", &format!("echo out; {TREE}")) };
    // As a control, the tree runs in a cgroup of its own.
    let control = Executed::start(&daemon.api, ExecStart { timeout: None, ..start() }).unwrap();
    wait::until("the tree runs", || (pids(&daemon).len() >= before.len() + 4).then_some(()));
    assert_eq!(exec_cgroups(&daemon).len(), 1);
    drop(control);
    wait::until("the process tree has exited", || (pids(&daemon) == before).then_some(()));
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let begun = Instant::now();
                    let mut process = Executed::start(&daemon.api, start()).unwrap();
                    process.until("out");
                    let ended = process.end().err().unwrap();
                    assert_eq!(ended.code(), Code::DeadlineExceeded, "{ended:?}");
                    assert!(ended.message().contains("took longer than 1s"), "{ended:?}");
                    assert!(begun.elapsed() >= Duration::from_secs(1));
                }
            });
        }
    });
    nothing_left(&daemon, &before);
    assert_eq!(executed(&daemon.api, script("c", "exit 4")).unwrap().exit, Some(Ok(4)));
}

#[test]
fn exit_kills_descendants_unless_left() {
    let daemon = without_warm_pool();
    daemon.api.up(container("c"));
    let before = pids(&daemon);
    let daemonize = "setsid sleep 100000 >/dev/null 2>&1 & exit 3";
    for terminal in [false, true] {
        let start = ExecStart { terminal, ..script("c", daemonize) };
        assert_eq!(executed(&daemon.api, start).unwrap().exit, Some(Ok(3)));
        nothing_left(&daemon, &before);
    }
    // The client of the first process disconnects. The second process is detached and has a time limit.
    let process = Executed::start(&daemon.api, script("c", TREE)).unwrap();
    wait::until("the tree runs", || (pids(&daemon).len() >= before.len() + 4).then_some(()));
    drop(process);
    wait::until("the process tree has exited", || {
        (pids(&daemon) == before && exec_cgroups(&daemon).is_empty()).then_some(())
    });
    executed(&daemon.api, ExecStart { detached: true, timeout: millis(200), ..script("c", TREE) }).unwrap();
    wait::until("the process tree has exited", || {
        (pids(&daemon) == before && exec_cgroups(&daemon).is_empty()).then_some(())
    });
    // As a control, the client requests that the daemonized process is left running.
    let left = ExecStart { leave_processes: true, ..script("c", daemonize) };
    assert_eq!(executed(&daemon.api, left).unwrap().exit, Some(Ok(3)));
    assert_eq!(pids(&daemon).len(), before.len() + 1);
    assert_eq!(exec_cgroups(&daemon), Vec::<PathBuf>::new());
    // With a time limit, the processes are killed nevertheless.
    let left = ExecStart { leave_processes: true, timeout: millis(200), ..script("c", TREE) };
    assert_eq!(executed(&daemon.api, left).err().unwrap().code(), Code::DeadlineExceeded);
    assert_eq!(pids(&daemon).len(), before.len() + 1);
    daemon.api.stop("c", Some(0)).unwrap();
    daemon.api.wait("c").unwrap();
    assert_eq!(pids(&daemon), Vec::<i32>::new());
}

/// A fork bomb is killed as a whole.
#[test]
fn time_limit_ends_a_fork_bomb() {
    let daemon = without_warm_pool();
    daemon.api.up(RunRequest { limits: Some(Limits { pids: 200, ..Limits::default() }), ..container("c") });
    let before = pids(&daemon);
    let bomb = "f() { f & f & f & }; while :; do f; setsid sleep 1000 & done";
    // Long enough for the control on a busy machine.
    let start = ExecStart { timeout: millis(10_000), ..script("c", &format!("({bomb}) & exec sleep 1000")) };
    let mut process = Executed::start(&daemon.api, start).unwrap();
    while !String::from_utf8_lossy(&process.stderr).contains("fork") {
        let read = process.read_message();
        assert!(matches!(read, Ok(true)), "control failed: no fork was refused: {read:?}");
    }
    let ended = process.end().err().unwrap();
    assert_eq!(ended.code(), Code::DeadlineExceeded, "{ended:?}");
    nothing_left(&daemon, &before);
}

/// If the supervisor is killed, the launcher kills the descendants.
#[test]
fn killed_supervisor_leaves_no_descendants() {
    let daemon = without_warm_pool();
    daemon.api.up(container("c"));
    let before = pids(&daemon);
    let process = Executed::start(&daemon.api, script("c", TREE)).unwrap();
    wait::until("the tree runs", || (pids(&daemon).len() >= before.len() + 4).then_some(()));
    let comm = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "executor-exec\n");
    let supervisor = host::descendants(daemon.launcher().unwrap()).into_iter().find(comm).unwrap();
    kill(supervisor, 9);
    assert_eq!(process.end().err().unwrap().code(), Code::Unavailable);
    wait::until("the process tree has exited", || {
        (pids(&daemon) == before && exec_cgroups(&daemon).is_empty()).then_some(())
    });
    assert!(has_ended(supervisor));
}

#[test]
fn timed_out_checks_leave_nothing() {
    let daemon = without_warm_pool();
    let probe = ExecCheck {
        path: "/bin/sh".into(),
        args: vec!["-c".into(), format!("echo >> /tmp/run; {TREE}")],
        ..ExecCheck::default()
    };
    let check = Check {
        kind: Some(Kind::Exec(probe)),
        timeout: millis(200),
        interval: millis(1000),
        unhealthy_threshold: 100,
        ..Check::default()
    };
    let checks = Some(Checks { readiness: vec![check], ..Checks::default() });
    daemon.api.up(RunRequest { checks, ..container("c") });
    let runs = || executed(&daemon.api, script("c", "cat /tmp/run | wc -l")).unwrap().text();
    wait::until("some checks have timed out", || (runs().trim().parse::<u32>().unwrap_or(0) >= 4).then_some(()));
    // At most one check runs: first process, shell, sleep, and the tree of a check.
    let counted: Vec<usize> = (0..20)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(50));
            pids(&daemon).len()
        })
        .collect();
    assert!(counted.iter().all(|count| *count <= 3 + 6), "{counted:?}");
    assert!(counted.contains(&3), "{counted:?}");
}

#[test]
fn command_line_has_time_limits() {
    let daemon = without_warm_pool();
    daemon.api.up(container("c"));
    let before = pids(&daemon);
    let cli = |line: &str| cli::run(&daemon.socket(), &line.split(' ').collect::<Vec<_>>());
    let ended = cli("exec --timeout 300ms c -- sleep 1000");
    assert_eq!(ended.status, 125);
    assert!(ended.stderr.contains("took longer than 300ms"), "{}", ended.stderr);
    let refused = ExecStart { timeout: millis(0), ..script("c", "true") };
    let refused = executed(&daemon.api, refused).err().unwrap();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("start.timeout"), "{refused:?}");
    assert!(cli("exec --timeout 200h c -- true").stderr.contains("at most 604800 s"));
    assert_eq!(cli("exec --leave-processes c -- sh -c sleep${IFS}1000>/dev/null&").status, 0);
    assert_eq!(pids(&daemon).len(), before.len() + 1);
}
