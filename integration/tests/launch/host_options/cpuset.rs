//! Tests the CPUs and memory nodes of containers.

use executor_proto::v1::{Limits, RunRequest, UpdateLimitsRequest};
use integration::api::pid;
use integration::cli;
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::streams::{executed, script};
use integration::wait;
use tonic::Code;

use super::{printed, refused, step};

const ALLOWED: &str = "grep -E '^(Cpus|Mems)_allowed_list' /proc/self/status";
const OF_THE_FIRST: &str = "Cpus_allowed_list:\t0\nMems_allowed_list:\t0\n";

fn on(cpus: &str, mems: &str, request: RunRequest) -> RunRequest {
    let limits = request.limits.clone().unwrap_or_default();
    let limits = Limits { cpuset_cpus: cpus.into(), cpuset_mems: mems.into(), ..limits };
    RunRequest { limits: Some(limits), ..request }
}

/// The container's own process, an executed process and a step run on the requested CPUs, and a process cannot leave
/// them. As a control, processes may use every CPU without a list.
#[test]
fn processes_stay_on_their_processors() {
    let daemon = Daemon::start();
    let all = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let before = daemon.footprint();
    assert_eq!(printed(&daemon, on("0", "0", sh(ALLOWED).id("main"))), OF_THE_FIRST);
    assert_eq!(printed(&daemon, on("0", "", step("step", ALLOWED))), OF_THE_FIRST);
    let all_of_it = sh(&format!("taskset -p -c {} $$ >/dev/null 2>&1; {ALLOWED}", all.trim())).id("leave");
    assert_eq!(printed(&daemon, on("0", "", all_of_it)), OF_THE_FIRST, "a process cannot widen its cpuset");
    let container = daemon.api.started(on("0", "0", sleeper("exec")));
    assert_eq!(container.spec.as_ref().unwrap().limits.as_ref().unwrap().cpuset_cpus, "0");
    assert_eq!(executed(&daemon.api, script("exec", ALLOWED)).unwrap().text(), OF_THE_FIRST);
    let free = printed(&daemon, sh(ALLOWED).id("free"));
    assert!(free.contains(&format!("Cpus_allowed_list:\t{all}")), "{free}, the control");
    for id in ["main", "step", "leave", "exec", "free"] {
        daemon.api.delete(id, true).unwrap();
    }
    daemon.wait_until_back_at(&before);
}

/// If no CPUs are requested, a container has no cpuset cgroup. A list with a CPU that the host does not have is
/// refused.
#[test]
fn lists_are_those_of_the_host() {
    let daemon = Daemon::start();
    let init = pid(&daemon.api.started(sleeper("free")));
    let cgroups = std::fs::read_to_string(format!("/proc/{init}/cgroup")).unwrap();
    assert!(!cgroups.lines().any(|line| line.contains(":cpuset:") && line.contains("free")), "{cgroups}");
    let before = daemon.footprint();
    let (code, violations) = refused(&daemon, on("0,8000", "900", sh("true").id("absent")));
    assert_eq!(code, Code::FailedPrecondition);
    assert_eq!((&*violations[0].0, &*violations[1].0), ("limits.cpuset_cpus", "limits.cpuset_mems"));
    assert!(violations[0].1.starts_with("processor 8000 is not available to containers on this host; available: 0"));
    let (code, violations) = refused(&daemon, on("0-", "x", sh("true").id("malformed")));
    assert_eq!((code, violations.len()), (Code::InvalidArgument, 2), "{violations:?}");
    daemon.wait_until_back_at(&before);
}

/// The CPUs of a container can change while it runs, for its own process and for executed processes (CRI rule G7 of
/// docs/guides/cri-rules.md). A CPU that the host does not have changes nothing, and a container that started without a
/// list has none. As a control, the processes run on the first CPU before the change.
#[test]
fn lists_change_while_a_container_runs() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let container = daemon.api.started(on("0", "0", sleeper("moved")));
    daemon.api.started(sleeper("free"));
    let update = |id: &str, cpuset_cpus: &str| {
        let limits = Limits { cpuset_cpus: cpuset_cpus.into(), ..Limits::default() };
        let request = UpdateLimitsRequest { id: id.into(), limits: Some(limits) };
        daemon.api.block_on(daemon.api.rpc().update_limits(request))
    };
    let allowed = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", pid(&container))).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t").map(str::to_owned));
        (line.unwrap(), executed(&daemon.api, script("moved", ALLOWED)).unwrap().text())
    };
    let all = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap().trim().to_owned();
    assert_eq!(allowed(), ("0".to_owned(), OF_THE_FIRST.to_owned()), "control failed");
    update("moved", &all).unwrap();
    assert_eq!(allowed(), (all.clone(), OF_THE_FIRST.replacen("list:\t0", &format!("list:\t{all}"), 1)));
    let absent = update("moved", "0,8000").unwrap_err();
    assert_eq!(absent.code(), Code::FailedPrecondition, "{absent}");
    assert!(absent.message().contains("processor 8000 is not available"), "{absent}");
    assert_eq!(allowed().0, all);
    let shared = update("free", "0").unwrap_err();
    assert_eq!(shared.code(), Code::InvalidArgument, "{shared}");
    let changed = cli::run(&daemon.socket(), &["update", "--cpuset-cpus", "0", "moved"]);
    assert_eq!((changed.status, &*changed.stdout), (0, "moved\n"), "{}", changed.stderr);
    assert_eq!(allowed(), ("0".to_owned(), OF_THE_FIRST.to_owned()));
    let limits = daemon.api.get("moved").unwrap().spec.unwrap().limits.unwrap();
    assert_eq!((&*limits.cpuset_cpus, &*limits.cpuset_mems), ("0", "0"));
    for id in ["moved", "free"] {
        daemon.api.delete(id, true).unwrap();
    }
    daemon.wait_until_back_at(&before);
}

/// After a kill of any of the executor's processes, the cgroup is removed with its container.
#[test]
fn cpuset_is_removed_after_shim_kill() {
    let mut daemon = Setup::default().start();
    let before = daemon.footprint();
    daemon.api.started(on("0", "0", sleeper("orphan")));
    let shim = daemon.record("orphan").shim.pid;
    integration::daemon::kill(shim, 9);
    daemon.api.wait("orphan").unwrap();
    daemon.api.delete("orphan", false).unwrap();
    daemon.wait_until_back_at(&before);
    // The next launcher, which did not create the container, executes a process in it.
    let container = daemon.api.started(on("0", "0", sleeper("kept")));
    daemon.kill();
    let launcher = daemon.launcher().unwrap();
    integration::daemon::kill(launcher, 9);
    wait::until("the launcher has exited", || integration::daemon::has_ended(launcher).then_some(()));
    daemon.start_again();
    let again = daemon.api.get("kept").unwrap();
    assert_eq!(again.spec, container.spec);
    assert_eq!(executed(&daemon.api, script("kept", ALLOWED)).unwrap().text(), OF_THE_FIRST);
    daemon.api.delete("kept", true).unwrap();
    assert_eq!(daemon.footprint().added_since(&before).matches("cgroups").count(), 0);
}
