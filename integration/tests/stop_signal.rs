//! What Stop sends first is the container's own choice.

use std::time::{Duration, Instant};

use executor_proto::v1::RunRequest;
use integration::api::exit;
use integration::daemon::Daemon;
use integration::request::{Words as _, sh, sleeper};
use integration::wait;

const QUIT: u32 = 3;
const USR1: u32 = 10;
const WINCH: u32 = 28;

fn stopped_by(request: RunRequest, stop_signal: u32) -> RunRequest {
    RunRequest { stop_signal, ..request }
}

#[test]
fn the_first_signal_is_the_one_that_was_asked_for() {
    let daemon = Daemon::start();
    let script = "trap 'echo usr1; exit 7' USR1; trap 'echo term; exit 8' TERM; echo up; while :; do sleep 0.01; done";
    for (id, signal, code) in [("usr1", USR1, 7), ("default", 0, 8)] {
        daemon.api.started(stopped_by(sh(script).id(id), signal));
        wait::until("it is up", || daemon.api.logs_so_far(id).contains("up").then_some(()));
        daemon.api.stop(id, None).unwrap();
        assert_eq!(exit(&daemon.api.wait(id).unwrap()), Ok(code), "{id}");
    }
}

/// The first process of a pid namespace does not get a signal that it has no handler for. Where it is alone and any other
/// process would have ended, it is not waited for. The control: a signal that ends nobody is waited out.
#[test]
fn a_process_that_cannot_get_it_is_not_waited_for() {
    let daemon = Daemon::start();
    for (id, signal, grace) in [("quit", QUIT, 3_600_000), ("winch", WINCH, 700)] {
        daemon.api.started(stopped_by(sleeper(id).grace_ms(grace), signal));
        let begun = Instant::now();
        daemon.api.stop(id, None).unwrap();
        assert_eq!(exit(&daemon.api.wait(id).unwrap()), Err(9), "{id}");
        // The other one would not have ended for an hour.
        assert!(signal == QUIT || begun.elapsed() >= Duration::from_millis(700), "{:?}", begun.elapsed());
    }
}
