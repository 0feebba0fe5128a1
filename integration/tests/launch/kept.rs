//! Results that are kept until they are deleted (`keep_until_deleted`): retention does not delete them, even after a
//! restart of executord, and their number is limited. See CRI rules G16 and C44 of docs/guides/cri-rules.md.

use executor_proto::v1::{CreatePodRequest, RunRequest, pod};
use integration::api::exit;
use integration::cli;
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder as _, sh};
use integration::wait;
use tonic::Code;

/// Configuration in which results are deleted immediately, unless they are kept.
const CONFIG: &str = "[retention]\ncompleted = 0\n[policy]\nkeep_until_deleted_max = 3\n";

fn kept(id: &str, script: &str) -> RunRequest {
    RunRequest { keep_until_deleted: true, ..sh(script).id(id) }
}

/// Runs a container whose result is not kept, and waits until the retention task has deleted it. The task has then
/// checked all containers that completed before.
fn retention_ran(daemon: &Daemon, id: &str) {
    daemon.api.run_to_end(sh("true").id(id));
    wait::until("the control is deleted", || daemon.api.get(id).is_err().then_some(()));
}

#[test]
fn retention_spares_containers_kept_until_deleted() {
    let mut daemon = Setup::default().config(CONFIG).start();
    let request = kept("kept", "echo output; exit 3");
    assert_eq!(exit(&daemon.api.run_to_end(request.clone())), Ok(3));
    let pods = daemon.api.client().pods();
    let pod_request = |keep_until_deleted| CreatePodRequest {
        id: if keep_until_deleted { "pod" } else { "control-pod" }.into(),
        keep_until_deleted,
        ..CreatePodRequest::default()
    };
    for keep_until_deleted in [true, false] {
        let (pod, _) = daemon.api.block_on(pods.create(&pod_request(keep_until_deleted))).unwrap();
        daemon.api.block_on(pods.stop(&pod.id, None)).unwrap();
    }
    let member = RunRequest { pod: "member-pod".into(), ..kept("member", "exit 4") };
    let request_of_pod = CreatePodRequest { id: "member-pod".into(), ..CreatePodRequest::default() };
    daemon.api.block_on(pods.create(&request_of_pod)).unwrap();
    daemon.api.run_to_end(member);
    daemon.api.block_on(pods.stop("member-pod", None)).unwrap();
    for round in ["first", "restarted"] {
        retention_ran(&daemon, &format!("control-{round}"));
        let pods = daemon.api.client().pods();
        assert!(daemon.api.block_on(pods.get("control-pod")).is_err(), "control failed");
        let ended = daemon.api.block_on(pods.get("pod")).unwrap();
        assert_eq!(ended.state(), pod::State::Ended);
        assert!(ended.spec.unwrap().keep_until_deleted && ended.ended_at.is_some());
        let container = daemon.api.get("kept").unwrap();
        assert_eq!(exit(&container), Ok(3));
        assert!(container.spec.unwrap().keep_until_deleted);
        assert_eq!(daemon.api.output("kept").text(), "output\n");
        // A pod is kept with its member.
        assert_eq!(exit(&daemon.api.get("member").unwrap()), Ok(4));
        daemon.api.block_on(pods.get("member-pod")).unwrap();
        // The same request returns the same result.
        assert!(!daemon.api.run(request.clone()).unwrap().created);
        if round == "first" {
            daemon.kill();
            daemon.start_again();
        }
    }
    // The limit counts the containers that an earlier executord created.
    let refused = daemon.api.run(kept("fourth", "true")).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("policy.keep_until_deleted_max"), "{refused:?}");
    daemon.api.delete("kept", false).unwrap();
    let pods = daemon.api.client().pods();
    daemon.api.block_on(pods.delete("pod", false)).unwrap();
    assert!(daemon.api.block_on(pods.get("pod")).is_err());
    assert_eq!(daemon.api.get("kept").unwrap_err().code(), Code::NotFound);
    daemon.api.run_to_end(kept("fourth", "true"));
}

#[test]
fn keeping_until_deleted_needs_permission() {
    let daemon = Daemon::start();
    let refused = daemon.api.run(kept("a", "true")).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    assert!(refused.message().contains("policy.keep_until_deleted_max = 0"), "{refused:?}");
    let pod = CreatePodRequest { id: "p".into(), keep_until_deleted: true, ..CreatePodRequest::default() };
    daemon.api.block_on(daemon.api.client().pods().create(&pod)).unwrap_err();
    let daemon = Setup::default().config(CONFIG).start();
    let both = RunRequest { remove_when_completed: true, ..kept("a", "true") };
    assert_eq!(daemon.api.run(both).unwrap_err().code(), Code::InvalidArgument);
    let cli = |line: &str| cli::run(&daemon.socket(), &line.split(' ').collect::<Vec<_>>());
    assert_eq!(cli("run --name c --keep-until-deleted -- /bin/sh -c exit${IFS}5").status, 5);
    retention_ran(&daemon, "control");
    assert_eq!(cli("inspect c --json").json()["spec"]["keep_until_deleted"], true);
    assert!(cli("inspect c").stdout.contains("until it is deleted"));
    assert_eq!(cli("pod create --name p --keep-until-deleted").status, 0);
    assert_eq!(cli("pod stop p").status, 0);
    retention_ran(&daemon, "control2");
    assert_eq!(cli("pod inspect p --json").json()["spec"]["keep_until_deleted"], true);
}
