//! A container can choose the first signal that Stop sends.

use std::time::{Duration, Instant};

use executor_proto::v1::RunRequest;
use integration::api::exit;
use integration::daemon::Daemon;
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::wait;

const QUIT: u32 = 3;
const USR1: u32 = 10;
const WINCH: u32 = 28;

fn stopped_by(request: RunRequest, stop_signal: u32) -> RunRequest {
    RunRequest { stop_signal, ..request }
}

#[test]
fn first_stop_signal_is_requested_one() {
    let daemon = Daemon::start();
    let script = "trap 'echo usr1; exit 7' USR1; trap 'echo term; exit 8' TERM; echo up; while :; do sleep 0.01; done";
    for (id, signal, code) in [("usr1", USR1, 7), ("default", 0, 8)] {
        daemon.api.started(stopped_by(sh(script).id(id), signal));
        wait::until("the process is up", || daemon.api.logs_so_far(id).contains("up").then_some(()));
        daemon.api.stop(id, None).unwrap();
        assert_eq!(exit(&daemon.api.wait(id).unwrap()), Ok(code), "{id}");
    }
}

/// If the stop signal would terminate the process, but the process is PID 1 and has no handler, the kernel does not
/// deliver the signal. Stop then does not wait for the grace period. As a control, Stop waits after a signal that
/// terminates no process.
#[test]
fn undeliverable_stop_signal_is_not_waited_for() {
    let daemon = Daemon::start();
    for (id, signal, grace) in [("quit", QUIT, 3_600_000), ("winch", WINCH, 700)] {
        daemon.api.started(stopped_by(sleeper(id).grace_ms(grace), signal));
        let begun = Instant::now();
        daemon.api.stop(id, None).unwrap();
        assert_eq!(exit(&daemon.api.wait(id).unwrap()), Err(9), "{id}");
        // With SIGQUIT, a Stop that waits for the grace period would take an hour.
        assert!(signal == QUIT || begun.elapsed() >= Duration::from_millis(700), "{:?}", begun.elapsed());
    }
}

/// With an init, the program receives signals that the kernel does not deliver to PID 1, orphans are reaped, and the
/// exit status is the program's. As controls, the same programs run without an init.
#[test]
fn init_forwards_signals_and_reaps_orphans() {
    let daemon = Daemon::start();
    let with_init = |request: RunRequest, init| RunRequest { init, ..request };
    for (id, init, end) in [("with", true, Ok(128 + 15)), ("without", false, Err(9))] {
        daemon.api.started(with_init(sleeper(id).grace_ms(3_600_000), init));
        daemon.api.stop(id, None).unwrap();
        assert_eq!(exit(&daemon.api.wait(id).unwrap()), end, "{id}");
    }
    let traps = "trap 'echo got; exit 6' USR1; echo up; while :; do sleep 0.01; done";
    daemon.api.started(with_init(sh(traps).id("trap"), true));
    wait::until("the process is up", || daemon.api.logs_so_far("trap").contains("up").then_some(()));
    daemon.api.signal("trap", USR1).unwrap();
    assert_eq!(exit(&daemon.api.wait("trap").unwrap()), Ok(6));
    // An exited orphan disappears if PID 1 reaps it. In the control, PID 1 is a program that reaps nothing.
    let orphan = "(sh -c 'until test -e /tmp/go; do sleep 0.01; done' & echo $! >/tmp/pid); exec perl -e '
        open F, \"/tmp/pid\"; chomp($pid = <F>); open G, \">/tmp/go\";
        for (1..1000) { last if !-e \"/proc/$pid\" or `cat /proc/$pid/stat` =~ /\\) Z/; select undef, undef, undef, 0.01 }
        for (1..$ENV{TURNS}) { last if !-e \"/proc/$pid\"; select undef, undef, undef, 0.01 }
        print -e \"/proc/$pid\" ? \"zombie\" : \"taken\"; exit 3'";
    // If the zombie were reaped at all, this would take only milliseconds.
    for (id, init, turns, reported) in [("orphan", true, "3000", "taken"), ("zombie", false, "20", "zombie")] {
        let request = sh(orphan).id(id).user("vcap").env("TURNS", turns);
        let ended = daemon.api.run_to_end(with_init(request, init));
        assert_eq!((exit(&ended), daemon.api.output(id).text().as_str()), (Ok(3), reported), "{id}");
    }
    // The init is a copy of the process that created the container. Root of the container can read its name and nothing
    // else.
    let look = "cat /proc/1/comm; cat /proc/1/environ /proc/1/maps 2>/dev/null; readlink /proc/1/exe /proc/1/cwd; ls /proc/1/fd 2>/dev/null";
    for (id, init, name) in [("looked-at", true, "init\n"), ("seen", false, "sh\n")] {
        daemon.api.run_to_end(with_init(sh(&format!("{look}; true")).id(id), init));
        let reported = daemon.api.output(id).text();
        assert!(reported.starts_with(name) && (reported == name) == init, "{id}: {reported:?}");
    }
    let missing = daemon.api.run_to_end(with_init(integration::request::program("/nope", &[]).id("missing"), true));
    assert!(missing.result.unwrap().failure.unwrap().message.contains("/nope"));
}
