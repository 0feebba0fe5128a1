//! Refused requests for pods report all violations together. Calls that do not apply to pods are refused.

use executor_client::Error;
use executor_proto::v1::volume_mount::Source;
use executor_proto::v1::{CreatePodRequest, PodVolumeName, RunRequest, VolumeMount, pod};
use integration::cli;
use integration::daemon::Daemon;
use integration::request::{sh, sleeper};
use tonic::Code;

use super::{asked, create, delete, get, in_pod, pods, stop};

fn refusal(error: &Error) -> (Option<Code>, String) {
    (error.code(), error.to_string())
}

#[test]
fn invalid_pod_calls_are_refused() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    create(&daemon, &asked("p"));
    let again = daemon.api.block_on(pods(&daemon).create(&asked("p"))).unwrap();
    assert!(!again.1, "the same request is the same pod");
    let other = CreatePodRequest { hostname: "x".into(), ..asked("p") };
    let reported = refusal(&daemon.api.block_on(pods(&daemon).create(&other)).unwrap_err());
    assert_eq!(reported.0, Some(Code::AlreadyExists), "{}", reported.1);
    assert_eq!(
        daemon.api.run(sleeper("p")).unwrap_err().code(),
        Code::AlreadyExists,
        "pods and containers share one set of ids"
    );
    assert_eq!(daemon.api.get("p").unwrap_err().code(), Code::NotFound, "a pod is no container");
    for call in [daemon.api.stop("p", None).unwrap_err(), daemon.api.delete("p", true).unwrap_err()] {
        assert!(call.code() == Code::NotFound && call.message().contains("is a pod"), "{call:?}");
    }

    daemon.api.started(in_pod("p", sleeper("one")));
    let reported = refusal(&daemon.api.block_on(pods(&daemon).get("one")).unwrap_err());
    assert_eq!(reported.0, Some(Code::NotFound), "a container is no pod: {}", reported.1);
    for pod in ["none", "one"] {
        let reported = daemon.api.run(in_pod(pod, sh("true"))).unwrap_err();
        assert!(reported.code() == Code::FailedPrecondition && reported.message().contains("pod"), "{reported:?}");
    }
    let source = Some(Source::Pod(PodVolumeName { name: "data".into() }));
    let volume = VolumeMount { path: "/tmp/v".into(), source, ..VolumeMount::default() };
    let greedy = RunRequest { hostname: "x".into(), network: 1, egress: true, ..in_pod("p", sh("true")) };
    let reported = daemon.api.run(greedy).unwrap_err();
    assert_eq!(reported.code(), Code::InvalidArgument);
    for field in ["network", "hostname", "egress"] {
        assert!(format!("{reported:?}").contains(field), "{reported:?}");
    }
    let unknown = RunRequest { volumes: vec![volume.clone()], ..in_pod("p", sh("true")) };
    let reported = daemon.api.run(unknown).unwrap_err();
    assert!(reported.message().contains("is not a volume of the pod p; the pod has no volumes"), "{reported:?}");
    let alone = daemon.api.run(RunRequest { volumes: vec![volume], ..sh("true") }).unwrap_err();
    assert!(alone.message().contains("volumes[0].pod"), "{alone:?}");

    let reported = refusal(&delete(&daemon, "p", false).unwrap_err());
    assert!(reported.0 == Some(Code::FailedPrecondition) && reported.1.contains("one"), "{reported:?}");
    assert_eq!(get(&daemon, "p").state(), pod::State::Ready, "nothing has changed");
    daemon.api.started(in_pod("p", sleeper("two")));
    stop(&daemon, "p");
    assert!(daemon.api.run(in_pod("p", sleeper("three"))).is_err(), "an ended pod accepts no member");
    delete(&daemon, "p", false).unwrap();
    let reported = refusal(&delete(&daemon, "p", false).unwrap_err());
    assert_eq!(reported.0, Some(Code::NotFound), "{}", reported.1);
    daemon.wait_until_back_at(&before);
}

#[test]
fn command_line_creates_lists_and_removes_pods() {
    let daemon = Daemon::start();
    let socket = daemon.socket();
    let run = |line: &[&str]| cli::run(&socket, line);
    let created = run(&["pod", "create", "--id", "p", "--hostname", "web", "--volume", "data", "--label", "a=b"]);
    assert_eq!((created.status, &*created.stdout), (0, "p\n"), "{}", created.stderr);
    let mount = "type=pod,source=data,target=/tmp/d";
    let reported = run(&["run", "--pod", "p", "--mount", mount, "--", "sh", "-c", "hostname > /tmp/d/x; cat /tmp/d/x"]);
    assert_eq!((reported.status, &*reported.stdout), (0, "web\n"), "{}", reported.stderr);
    let detached = run(&["run", "--pod", "p", "--id", "one", "-d", "--", "sleep", "100000"]);
    assert_eq!(detached.status, 0, "{}", detached.stderr);
    let listed = run(&["ps", "--pod", "p"]);
    assert!(listed.stdout.contains("POD") && listed.stdout.contains("one"), "{}", listed.stdout);
    let json = run(&["--json", "pod", "ls"]).json();
    assert_eq!(
        (&json[0]["id"], &json[0]["state"], &json[0]["members"][0]["id"]),
        (&"p".into(), &"ready".into(), &"one".into())
    );
    let shown = run(&["pod", "inspect", "p"]).stdout;
    assert!(shown.contains("web") && shown.contains("one (running)"), "{shown}");
    let refused = run(&["pod", "rm", "p"]);
    assert!(refused.status != 0 && refused.stderr.contains("one"), "{}", refused.stderr);
    assert_eq!(run(&["pod", "stop", "p"]).stdout, "p\n");
    assert_eq!(run(&["--json", "pod", "rm", "p"]).json()[0]["deleted"], true);
    assert_eq!(run(&["pod", "ls", "-q"]).stdout, "");
}
