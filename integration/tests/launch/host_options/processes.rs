//! Resource limits and out-of-memory scores of processes.

use executor_proto::v1::{RunRequest, Ulimit, failure};
use executor_sys::process;
use integration::api::{ending, pid};
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::streams::{executed, script};
use tonic::Code;

use super::{has_sys_resource, printed, refused, step};

const LIMITS: &str = "grep -E '^Max (locked memory|pending signals|core file size|stack size)' /proc/self/limits \
                      | awk '{print $(NF-2), $(NF-1)}'";

fn ulimit(name: &str, soft: i64, hard: i64) -> Ulimit {
    Ulimit { name: name.into(), soft, hard }
}

fn limited(ulimits: &[Ulimit], request: RunRequest) -> RunRequest {
    RunRequest { ulimits: ulimits.to_vec(), ..request }
}

fn scored(score: i32, request: RunRequest) -> RunRequest {
    RunRequest { oom_score_adj: Some(score), ..request }
}

/// Soft and hard limits apply to the container's own process, executed processes and steps. No core file is ever
/// written.
#[test]
fn limits_hold_for_every_process() {
    let daemon = Daemon::start();
    let asked = [
        ulimit("memlock", 4096, 8192),
        ulimit("sigpending", 5, 6),
        ulimit("core", 0, 0),
        ulimit("stack", 1 << 20, 2 << 20),
    ];
    // The kernel's order is: stack, core, locked memory, signals.
    let expected = "1048576 2097152\n1 1\n4096 8192\n5 6\n";
    assert_eq!(printed(&daemon, limited(&asked, sh(LIMITS).id("main"))), expected);
    assert_eq!(printed(&daemon, limited(&asked, step("step", LIMITS))), expected);
    let with_init = RunRequest { init: true, ..sh(LIMITS).id("init") };
    assert_eq!(printed(&daemon, limited(&asked, with_init)), expected);
    let container = daemon.api.started(limited(&asked, sleeper("exec")));
    assert_eq!(container.spec.unwrap().ulimits, asked);
    assert_eq!(executed(&daemon.api, script("exec", LIMITS)).unwrap().text(), expected);
    // With these limits the setup of a process would fail. They take effect only when the process executes its program.
    let tight = [ulimit("fsize", 0, 0), ulimit("nproc", 1, 1), ulimit("sigpending", 0, 0), ulimit("rss", 0, 0)];
    let tight = limited(&tight, sh("(echo x >/tmp/x) 2>/dev/null; /bin/true; echo $?").id("tight"));
    let ended = daemon.api.run_to_end(tight);
    let failure = ending(&ended).failure.as_ref().map(|failure| failure.kind());
    assert!(matches!(failure, None | Some(failure::Kind::Action)), "the program did not run: {ended:#?}");
}

/// A hard limit above the launcher's own is refused by default. It succeeds if the operator allows it and the launcher
/// can raise limits.
#[test]
fn hard_limits_are_raised_where_allowed() {
    let own = std::fs::read_to_string("/proc/self/limits").unwrap();
    let own =
        own.lines().find(|line| line.starts_with("Max msgqueue size")).unwrap().split_whitespace().nth(4).unwrap();
    let above: i64 = own.parse::<i64>().unwrap() + 1;
    let asked = |id: &str| limited(&[ulimit("cpu", -1, -1), ulimit("msgqueue", 0, above)], sh("ulimit -q").id(id));
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let (code, violations) = refused(&daemon, asked("closed"));
    assert_eq!((code, &*violations[0].0, violations.len()), (Code::FailedPrecondition, "ulimits[1].hard", 1));
    assert!(violations[0].1.contains("ulimits_max.msgqueue") && violations[0].1.contains(own), "{violations:?}");
    daemon.wait_until_back_at(&before);
    let open = Setup::default().config("[policy.ulimits_max]\nmsgqueue = -1\nmemlock = 4096\n").start();
    if has_sys_resource() {
        let limits = "grep msgqueue /proc/self/limits | awk '{print $4, $5}'";
        let asked = |request| limited(&[ulimit("msgqueue", 0, above)], request);
        assert_eq!(printed(&open, asked(sh(limits).id("raised"))), format!("0 {above}\n"));
        assert_eq!(printed(&open, asked(step("step", limits))), format!("0 {above}\n"));
        open.api.started(asked(sleeper("exec")));
        assert_eq!(executed(&open.api, script("exec", limits)).unwrap().text(), format!("0 {above}\n"));
    } else {
        let (code, violations) = refused(&open, asked("raised"));
        assert_eq!((code, &*violations[0].0), (Code::FailedPrecondition, "ulimits[1].hard"));
        assert!(violations[0].1.contains("CAP_SYS_RESOURCE"), "{violations:?}");
    }
    let (code, violations) = refused(&open, limited(&[ulimit("memlock", 0, 4097)], sh("true").id("most")));
    assert_eq!((code, &*violations[0].0), (Code::InvalidArgument, "ulimits[0].hard"));
}

/// The score applies to every process of the container, but not to its shim.
#[test]
fn scores_are_set_for_every_process() {
    const SCORE: &str = "cat /proc/self/oom_score_adj";
    let daemon = Daemon::start();
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    assert_eq!(printed(&daemon, scored(500, sh(SCORE).id("main"))), "500\n");
    assert_eq!(printed(&daemon, scored(500, step("step", SCORE))), "500\n");
    assert_eq!(printed(&daemon, scored(500, RunRequest { init: true, ..sh(SCORE).id("init") })), "500\n");
    let container = daemon.api.started(scored(1000, sleeper("exec")));
    assert_eq!(executed(&daemon.api, script("exec", SCORE)).unwrap().text(), "1000\n");
    let score = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    assert_eq!((score(pid(&container)), score(daemon.record("exec").shim.pid)), ("1000\n".into(), own));
    assert_eq!(container.spec.unwrap().oom_score_adj, Some(1000));
}

/// A container without a requested score has score 0, regardless of the scores of the launcher and the shims.
#[test]
fn container_score_is_not_launchers() {
    const SCORE: &str = "cat /proc/self/oom_score_adj";
    let own = std::process::id();
    process::set_oom_score_adj(own, 300).unwrap();
    let daemon = Daemon::start();
    process::set_oom_score_adj(own, 0).unwrap();
    let container = daemon.api.started(sleeper("exec"));
    let score = |pid: i32| process::oom_score_adj(pid.cast_unsigned()).unwrap();
    let ours = [daemon.launcher().unwrap(), daemon.record("exec").shim.pid, daemon.pid()];
    assert_eq!(ours.map(score), [300; 3], "control failed");
    assert_eq!(score(pid(&container)), 0);
    assert_eq!(executed(&daemon.api, script("exec", SCORE)).unwrap().text(), "0\n");
    assert_eq!(printed(&daemon, sh(SCORE).id("main")), "0\n");
    assert_eq!(printed(&daemon, step("step", SCORE)), "0\n");
    assert_eq!(printed(&daemon, RunRequest { init: true, ..sh(SCORE).id("init") }), "0\n");
}

/// A score below 0 is refused by default, and even with the operator's permission if the launcher cannot lower scores.
#[test]
fn scores_are_lowered_where_allowed() {
    let daemon = Daemon::start();
    let (code, violations) = refused(&daemon, scored(-1, sh("true").id("closed")));
    assert_eq!((code, &*violations[0].0), (Code::InvalidArgument, "oom_score_adj"));
    assert!(violations[0].1.contains("oom_score_adj_min"), "{violations:?}");
    let open = Setup::default().config("[policy]\noom_score_adj_min = -500\n").start();
    let before = open.footprint();
    if has_sys_resource() {
        assert_eq!(printed(&open, scored(-500, sh("cat /proc/self/oom_score_adj").id("lowered"))), "-500\n");
    } else {
        let (code, violations) = refused(&open, scored(-500, sh("true").id("lowered")));
        assert_eq!((code, &*violations[0].0), (Code::FailedPrecondition, "oom_score_adj"));
        assert!(violations[0].1.contains("CAP_SYS_RESOURCE"), "{violations:?}");
        open.wait_until_back_at(&before);
    }
    assert_eq!(refused(&open, scored(-501, sh("true").id("below"))).0, Code::InvalidArgument);
}
