//! Stop can replace the container's own stop signal.

use executor_proto::v1::{Action, Container, ParallelAction, RunAction, RunRequest, StopRequest};
use integration::api::{ending, exit};
use integration::cli;
use integration::daemon::Daemon;
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::wait;
use tonic::{Code, Status};

const INT: u32 = 2;
const USR1: u32 = 10;
const TRAPS: &str = "trap 'echo int' INT; trap 'echo usr1; exit 7' USR1; trap 'echo term; exit 8' TERM; echo up; \
                     while :; do sleep 0.01; done";

fn stop(daemon: &Daemon, id: &str, signal: u32, grace_seconds: Option<i64>) -> Result<Container, Status> {
    let grace_period = grace_seconds.map(|seconds| prost_types::Duration { seconds, nanos: 0 });
    let request = StopRequest { id: id.into(), grace_period, signal };
    daemon.api.block_on(daemon.api.rpc().stop(request)).map(|answer| answer.into_inner().container.unwrap())
}

fn is_up(daemon: &Daemon, id: &str, lines: usize) {
    wait::until("the processes are up", || (daemon.api.logs_so_far(id).matches("up").count() == lines).then_some(()));
}

/// Stop sends the requested signal. As a control, Stop sends the container's own signal if no signal is requested.
#[test]
fn requested_signal_replaces_configured_stop_signal() {
    let daemon = Daemon::start();
    for (id, signal, code) in [("usr1", USR1, 7), ("own", 0, 8)] {
        daemon.api.started(sh(TRAPS).id(id));
        is_up(&daemon, id, 1);
        stop(&daemon, id, signal, None).unwrap();
        let ended = daemon.api.wait(id).unwrap();
        assert_eq!((exit(&ended), ending(&ended).stopped), (Ok(code), true), "{id}");
    }
    daemon.api.started(sh(TRAPS).id("cli"));
    is_up(&daemon, "cli", 1);
    let done = cli::run(&daemon.socket(), &["stop", "--signal", "USR1", "cli"]);
    assert_eq!(done.status, 0, "{done:?}");
    assert_eq!(exit(&daemon.api.get("cli").unwrap()), Ok(7));
}

/// A second Stop sends no signal, even if the request contains a signal. The second Stop can only shorten the grace
/// period.
#[test]
fn later_stop_sends_no_signal() {
    let daemon = Daemon::start();
    daemon.api.started(sh(TRAPS).id("c").grace_ms(3_600_000));
    is_up(&daemon, "c", 1);
    for signal in [INT, INT, USR1, 0] {
        stop(&daemon, "c", signal, None).unwrap();
    }
    // The process prints the name of the first signal before it handles the next signal.
    wait::until("the first signal is handled", || daemon.api.logs_so_far("c").contains("int").then_some(()));
    daemon.api.signal("c", USR1).unwrap();
    assert_eq!(exit(&daemon.api.wait("c").unwrap()), Ok(7));
    assert_eq!(daemon.api.output("c").text(), "up\nint\nusr1\n");
}

#[test]
fn stop_signal_reaches_every_step() {
    let daemon = Daemon::start();
    let run = || Action {
        run: Some(RunAction { path: "/bin/sh".into(), args: vec!["-c".into(), TRAPS.into()], ..RunAction::default() }),
        ..Action::default()
    };
    let parallel = ParallelAction { actions: vec![run(), run()], ..ParallelAction::default() };
    let action = Some(Action { parallel: Some(parallel), ..Action::default() });
    for (id, signal, word) in [("usr1", USR1, "usr1"), ("own", 0, "term")] {
        daemon.api.started(RunRequest { action: action.clone(), ..RunRequest::default() }.id(id).memory(64 << 20));
        is_up(&daemon, id, 2);
        stop(&daemon, id, signal, Some(60)).unwrap();
        daemon.api.wait(id).unwrap();
        assert_eq!(daemon.api.output(id).text().matches(word).count(), 2, "{id}");
    }
}

#[test]
fn invalid_signal_number_is_refused() {
    let daemon = Daemon::start();
    daemon.api.started(sleeper("c"));
    let reported = stop(&daemon, "c", 65, Some(-1)).unwrap_err();
    assert_eq!(reported.code(), Code::InvalidArgument);
    assert!(reported.message().contains("signal: is 65") && reported.message().contains("grace_period"), "{reported}");
    assert_eq!(daemon.api.get("c").unwrap().state(), executor_proto::v1::State::Running);
}
