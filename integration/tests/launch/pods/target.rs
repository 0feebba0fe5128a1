//! A member that joins the PID namespace of another member (CRI rules G4 and C30 of docs/guides/cri-rules.md). Each
//! claim is compared with a control without the option.

use executor_proto::v1::{Capabilities, Container, CreatePodRequest, RunRequest, State, failure};
use integration::api::exit;
use integration::daemon::{Daemon, Setup, kill};
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::wait;
use tonic::Code;
use tonic_types::StatusExt as _;

use super::host::{LIST, is_running};
use super::{asked, create, delete, in_pod, namespace, script_output};

fn at(target: &str, request: RunRequest) -> RunRequest {
    RunRequest { pid_of: target.into(), ..in_pod("p", request) }
}

fn web(daemon: &Daemon, id: &str, seconds: &str) -> Container {
    let script = format!("exec sleep {seconds}");
    let request = sh(&script).id(id).env("KEY", "SECRET-ENV").file("/etc/cf-service-bindings/a", b"SECRET-FILE");
    let container = daemon.api.started(in_pod("p", request));
    wait::until("the process executes sleep", || is_running(seconds).then_some(()));
    container
}

#[test]
fn pid_of_shows_processes_of_its_target() {
    let daemon = Setup::default().config("[policy]\ncapabilities_allowed = ['CAP_SYS_PTRACE']\n").start();
    let before = daemon.footprint();
    create(&daemon, &asked("p"));
    let target = web(&daemon, "web", "65431");
    assert!(script_output(&daemon, at("web", sh(LIST))).starts_with("sleep 65431"), "process 1 is the target's");
    assert!(!script_output(&daemon, in_pod("p", sh(LIST))).contains("65431"), "control failed");
    let guest = daemon.api.started(at("web", sleeper("guest")));
    assert_eq!(namespace(&guest, "pid"), namespace(&target, "pid"));
    assert_ne!(namespace(&guest, "mnt"), namespace(&target, "mnt"));
    assert_eq!(guest.spec.unwrap().pid_of, "web");

    let read = sh("tr '\\0' '\\n' </proc/1/environ; cat /proc/1/root/etc/cf-service-bindings/a");
    let seen = script_output(&daemon, at("web", read.clone()));
    assert!(seen.contains("Permission denied") && !seen.contains("SECRET"), "{seen}");
    let add = vec!["SYS_PTRACE".to_owned()];
    let tracing = RunRequest { capabilities: Some(Capabilities { add, drop: vec![] }), ..read };
    let seen = script_output(&daemon, at("web", tracing));
    assert!(
        seen.contains("SECRET-ENV") && seen.contains("SECRET-FILE"),
        "control failed: CAP_SYS_PTRACE does not give access: {seen}"
    );

    // When the member exits, its leftover processes are killed, and no other processes.
    daemon.api.run_to_end(at("web", sh("(trap '' TERM HUP; exec setsid sleep 65432) & sleep 0.3").id("leaves")));
    assert!(!is_running("65432") && is_running("65431"));
    daemon.api.stop("guest", None).unwrap();
    let ended = daemon.api.wait("guest").unwrap();
    assert_eq!((exit(&ended), daemon.api.get("web").unwrap().state()), (Err(15), State::Running));
    delete(&daemon, "p", true).unwrap();
    daemon.wait_until_back_at(&before);
}

#[test]
fn end_of_target_ends_its_guests() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    create(&daemon, &asked("p"));
    daemon.api.started(in_pod("p", sleeper("apart")));
    for (round, seconds) in ["65441", "65442", "65443"].into_iter().enumerate() {
        let (target, guest) = (format!("web{round}"), format!("guest{round}"));
        web(&daemon, &target, seconds);
        daemon.api.started(at(&target, sleeper(&guest)));
        match round {
            0 => drop(daemon.api.stop(&target, None).unwrap()),
            1 => kill(daemon.record(&target).prepared.unwrap().init.pid, 9),
            _ => kill(daemon.record(&target).shim.pid, 9),
        }
        let ended = daemon.api.wait(&guest).unwrap();
        let failure = ended.result.as_ref().unwrap().failure.clone().unwrap();
        assert_eq!((exit(&ended), failure.kind()), (Err(9), failure::Kind::TargetEnded), "{failure:?}");
        assert!(failure.message.contains(&target), "{failure:?}");
        daemon.api.wait(&target).unwrap();
    }
    assert_eq!(daemon.api.get("apart").unwrap().state(), State::Running, "control failed");
    // If a signal kills the joining container itself, the failure is not `TargetEnded`.
    web(&daemon, "web", "65444");
    let guest = daemon.api.started(at("web", sleeper("guest")));
    kill(integration::api::pid(&guest), 9);
    let failure = daemon.api.wait("guest").unwrap().result.unwrap().failure.unwrap();
    assert_eq!(
        failure.kind(),
        failure::Kind::Action,
        "control failed: the kill is reported as another failure: {failure:?}"
    );
    delete(&daemon, "p", true).unwrap();
    daemon.wait_until_back_at(&before);
}

#[test]
fn pid_of_names_only_running_members() {
    let daemon = Daemon::start();
    create(&daemon, &asked("p"));
    create(&daemon, &asked("q"));
    create(&daemon, &CreatePodRequest { share_processes: true, ..asked("shared") });
    for (pod, id) in [("p", "web"), ("q", "other"), ("shared", "peer")] {
        daemon.api.started(in_pod(pod, sleeper(id)));
    }
    daemon.api.started(sleeper("alone"));
    daemon.api.run_to_end(in_pod("p", sh("true").id("ended")));
    daemon.api.started(at("web", sleeper("guest")));
    let refused = |request: RunRequest| {
        let status = daemon.api.run(request).unwrap_err();
        let details = status.get_details_bad_request().unwrap_or_else(|| panic!("no BadRequest: {status:?}"));
        assert_eq!(details.field_violations[0].field, "pid_of", "{status:?}");
        status.code()
    };
    for target in ["none", "ended", "other", "alone", "p", "guest"] {
        assert_eq!(refused(at(target, sh("true"))), Code::FailedPrecondition, "{target}");
    }
    assert_eq!(refused(at("../x", sh("true"))), Code::InvalidArgument);
    assert_eq!(refused(at("self", sh("true").id("self"))), Code::InvalidArgument);
    assert_eq!(refused(RunRequest { pod: String::new(), ..at("alone", sh("true")) }), Code::InvalidArgument);
    assert_eq!(refused(RunRequest { pod: "shared".into(), ..at("peer", sh("true")) }), Code::InvalidArgument);
    daemon.api.run_to_end(at("web", sh("true").id("control")));
}
