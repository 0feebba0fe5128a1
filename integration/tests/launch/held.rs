//! Held containers (`RunRequest.hold`): a container is complete before its process is started by Start. See CRI rules
//! G1, C10 and C11 of docs/guides/cri-rules.md.

use std::path::Path;

use executor_proto::v1::{
    Action, Container, PauseRequest, RunRequest, SerialAction, StartRequest, State, WatchEventsResponse, event, failure,
};
use integration::api::{Api, ending, exit};
use integration::cli;
use integration::daemon::{Daemon, Setup, has_ended, kill};
use integration::request::{RequestBuilder as _, program, sh, sleeper, update};
use integration::streams::{self, executed};
use integration::wait;
use tonic::{Code, Status};

const SCRIPT: &str = "cat /etc/cf-service-bindings/a; echo; echo up; exit 3";

fn held(id: &str, script: &str) -> RunRequest {
    RunRequest { hold: true, ..sh(script).id(id).file("a", b"held-secret") }
}

fn start(api: &Api, id: &str) -> Result<Container, Status> {
    let request = StartRequest { id: id.into() };
    api.block_on(api.rpc().start(request)).map(|answer| answer.into_inner().container.unwrap())
}

/// Returns the pid of a container's first process.
fn init(daemon: &Daemon, id: &str) -> i32 {
    daemon.record(id).prepared.unwrap().init.pid
}

/// Checks that the container waits, with its files in place, and has printed nothing.
fn waits(daemon: &Daemon, id: &str) {
    let container = daemon.api.get(id).unwrap();
    assert_eq!((container.state(), container.started_at, container.ready), (State::Created, None, false));
    let file = format!("/proc/{}/root/etc/cf-service-bindings/a", init(daemon, id));
    assert_eq!(std::fs::read(file).unwrap(), b"held-secret");
    assert_eq!(daemon.api.logs_so_far(id), "");
}

/// Runs a test with and without warm containers.
fn both_ways(test: impl Fn(Daemon)) {
    let warm = Daemon::start();
    warm.api.wait_until_warm_pool_is_ready();
    test(warm);
    test(Setup::default().config("[warm_pool]\nsize = 0\n").start());
}

#[test]
fn process_waits_for_its_start() {
    both_ways(|daemon| {
        let request = held("c", SCRIPT);
        let created = daemon.api.started(request.clone());
        assert!(created.spec.unwrap().hold);
        waits(&daemon, "c");
        // The same request returns the same container, which still waits.
        let again = daemon.api.run(request.clone()).unwrap();
        assert!(!again.created);
        assert_eq!(daemon.api.run(RunRequest { hold: false, ..request }).unwrap_err().code(), Code::AlreadyExists);
        waits(&daemon, "c");
        assert!(start(&daemon.api, "c").unwrap().started_at.is_some());
        let container = daemon.api.wait("c").unwrap();
        assert_eq!(exit(&container), Ok(3));
        let output = daemon.api.output("c").text();
        assert_eq!(output.matches("up\n").count(), 1, "{output}");
        assert!(ending(&container).wipe.as_ref().unwrap().verified);
        // A repeated Start shows the container.
        assert_eq!(start(&daemon.api, "c").unwrap().state(), State::Completed);
    });
}

/// Many callers that retry start the process once.
#[test]
fn concurrent_starts_start_one_process() {
    let daemon = Daemon::start();
    daemon.api.started(held("c", "echo up; exec sleep 100000"));
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..8).map(|_| scope.spawn(|| start(&daemon.api, "c"))).collect();
        for call in calls {
            assert_eq!(call.join().unwrap().unwrap().state(), State::Running);
        }
    });
    wait::until("the container prints", || daemon.api.logs_so_far("c").contains("up").then_some(()));
    daemon.api.stop("c", Some(0)).unwrap();
    daemon.api.wait("c").unwrap();
    assert_eq!(daemon.api.output("c").text().matches("up\n").count(), 1);
}

#[test]
fn stopped_held_container_never_starts() {
    both_ways(|daemon| {
        let before = daemon.footprint();
        let cursor = daemon.api.info().cursor;
        for id in ["stopped", "deleted"] {
            daemon.api.started(held(id, SCRIPT));
            let init = init(&daemon, id);
            if id == "deleted" {
                daemon.api.delete(id, true).unwrap();
            } else {
                daemon.api.stop(id, None).unwrap();
                let container = daemon.api.wait(id).unwrap();
                let result = ending(&container);
                assert_eq!(result.failure.as_ref().unwrap().kind(), failure::Kind::NotStarted);
                assert!(result.stopped && result.exit.is_none() && container.started_at.is_none(), "{result:?}");
                let wipe = result.wipe.as_ref().unwrap();
                assert_eq!((wipe.files, wipe.verified), (1, true));
                let refused = start(&daemon.api, id).unwrap_err();
                assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
                assert!(refused.message().contains("process was never started"), "{refused:?}");
                assert_eq!(daemon.api.output(id).text(), "");
                daemon.api.delete(id, false).unwrap();
            }
            assert!(has_ended(init));
        }
        let mut events = daemon.api.events_after(cursor);
        let is = |event: &WatchEventsResponse, kind| event.event.as_ref().is_some_and(|event| event.kind() == kind);
        let ended = |event: &WatchEventsResponse| {
            is(event, event::Kind::Completed) && event.event.as_ref().unwrap().container_id == "deleted"
        };
        let seen = events.until(ended);
        assert!(seen.iter().any(|event| is(event, event::Kind::Created)), "control failed");
        assert!(!seen.iter().any(|event| is(event, event::Kind::Running)), "{seen:#?}");
        daemon.wait_until_back_at(&before);
    });
}

/// The container is held while executord, the launcher, or both are killed and started again.
#[test]
fn held_container_survives_restarts() {
    let mut daemon = Daemon::start();
    daemon.api.started(held("c", SCRIPT));
    daemon.kill();
    daemon.start_again();
    waits(&daemon, "c");
    daemon.api.started(held("of-an-unknown-fate", SCRIPT));
    let launcher = daemon.launcher().unwrap();
    kill(launcher, 9);
    daemon.kill();
    // executord starts a launcher only if no running launcher has the socket.
    wait::until("the launcher has exited", || has_ended(launcher).then_some(()));
    daemon.start_again();
    for id in ["c", "of-an-unknown-fate"] {
        waits(&daemon, id);
        assert!(start(&daemon.api, id).unwrap().started_at.is_some());
        assert_eq!(exit(&daemon.api.wait(id).unwrap()), Ok(3));
    }
}

#[test]
fn lost_process_is_reported() {
    let daemon = Daemon::start();
    daemon.api.started(held("init", SCRIPT));
    kill(init(&daemon, "init"), 9);
    let container = daemon.api.wait("init").unwrap();
    assert_eq!(ending(&container).failure.as_ref().unwrap().kind(), failure::Kind::NotStarted);
    assert!(!ending(&container).stopped);
    daemon.api.started(held("shim", SCRIPT));
    kill(daemon.record("shim").shim.pid, 9);
    let container = daemon.api.wait("shim").unwrap();
    assert_eq!(ending(&container).failure.as_ref().unwrap().kind(), failure::Kind::SupervisorLost);
    for id in ["init", "shim"] {
        assert_eq!(ending(&daemon.api.get(id).unwrap()).wipe.as_ref().unwrap().files, 1);
        assert!(!Path::new(&format!("{}/containers/{id}", daemon.setup().run_dir().display())).exists());
    }
}

#[test]
fn start_reports_a_missing_program() {
    let daemon = Daemon::start();
    daemon.api.started(RunRequest { hold: true, ..program("/nope", &[]).id("c") });
    let container = start(&daemon.api, "c").unwrap();
    assert_eq!(ending(&container).failure.as_ref().unwrap().kind(), failure::Kind::Exec);
}

/// A tree of actions also starts with Start.
#[test]
fn tree_of_actions_waits() {
    let daemon = Daemon::start();
    let steps = ["echo first", "echo second"].map(|script| sh(script).action.unwrap());
    let serial = SerialAction { actions: steps.to_vec(), ..SerialAction::default() };
    let request = |id: &str| {
        let action = Action { serial: Some(serial.clone()), ..Action::default() };
        RunRequest { action: Some(action), ..held(id, "") }
    };
    for id in ["started", "stopped"] {
        daemon.api.started(request(id));
        assert_eq!(daemon.api.get(id).unwrap().state(), State::Created);
    }
    start(&daemon.api, "started").unwrap();
    assert_eq!(exit(&daemon.api.wait("started").unwrap()), Ok(0));
    assert!(daemon.api.output("started").text().contains("first\nsecond\n"));
    daemon.api.stop("stopped", None).unwrap();
    let container = daemon.api.wait("stopped").unwrap();
    assert_eq!(ending(&container).failure.as_ref().unwrap().kind(), failure::Kind::NotStarted);
}

#[test]
fn held_container_refuses_process_calls() {
    let daemon = Daemon::start();
    daemon.api.started(held("c", SCRIPT));
    daemon.api.started(sleeper("running"));
    assert_eq!(start(&daemon.api, "running").unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(start(&daemon.api, "missing").unwrap_err().code(), Code::NotFound);
    let precondition = |refused: Status| assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    precondition(daemon.api.signal("c", 15).unwrap_err());
    precondition(daemon.api.update(update("c", &[("a", b"x")])).unwrap_err());
    precondition(daemon.api.block_on(daemon.api.rpc().pause(PauseRequest { id: "c".into() })).unwrap_err());
    precondition(executed(&daemon.api, streams::start("c", "/bin/true", &[])).err().unwrap());
    waits(&daemon, "c");
}

#[test]
fn agent_cli_holds_and_starts() {
    let daemon = Daemon::start();
    let cli = |words: &str| cli::run(&daemon.socket(), &words.split(' ').collect::<Vec<_>>());
    let run = cli("run --hold --name c -- /bin/sh -c sleep${IFS}0;exit${IFS}5");
    assert_eq!((run.status, &*run.stdout), (0, "c\n"), "{}", run.stderr);
    assert_eq!(daemon.api.get("c").unwrap().state(), State::Created);
    assert_eq!(cli("ps --filter status=created -q").stdout, "c\n");
    assert_eq!(cli("start c").stdout, "c\n");
    assert_eq!(cli("wait c").status, 5);
    assert_eq!(cli("start --json c").json()[0]["started"], true);
    cli("run --hold --name missing -- /nope");
    let start = cli("start missing");
    assert!(start.status != 0 && start.stderr.contains("/nope"), "{start:?}");
    assert_eq!(cli("run --hold --keep -- /bin/true").status, 125);
}
