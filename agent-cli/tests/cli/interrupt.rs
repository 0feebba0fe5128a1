//! Tests Ctrl-C, pressed once, twice and three times.

use std::path::Path;
use std::time::Instant;

use executor_proto::v1::LogStream;
use rustix::process::Signal;

use crate::fake::{Call, EVENT_TIMEOUT, Fake, exited};
use crate::program::{Lines, agent_cli, bare, finish, run, send};

fn is_stop(call: &Call) -> bool {
    matches!(call, Call::Stop(stop) if stop.grace_period.is_none())
}

fn is_kill(call: &Call) -> bool {
    matches!(call, Call::Signal(signal) if signal.signal == 9 && signal.process_id.is_empty())
}

#[test]
fn first_signal_stops_container() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let fake = Fake::start();
        // Reset signals that the test runner ignores (nohup), because the program would inherit ignored signals.
        let program = env!("CARGO_BIN_EXE_agent-cli");
        let arguments = ["--default-signal", program, "run", "--id", "web-1", "--", "x"];
        let child = bare(Path::new("env"), &arguments).env("EXECUTOR_SOCKET", fake.socket()).spawn().unwrap();
        fake.called("Wait", 1, |call| matches!(call, Call::Wait(_)));
        send(&child, signal);
        let program = finish(child);
        // The program returns the status of the process, not of the signal: a process may clean up and exit with 0.
        assert_eq!((program.status, program.err().as_str()), (Some(143), ""), "{signal:?}");
        assert_eq!((fake.count(is_stop), fake.count(is_kill)), (1, 0));
        assert!(!fake.is_there("web-1"));
    }
}

/// timeout(1) sends SIGTERM to its process and to the process group. The two signals count as a single request.
#[test]
fn simultaneous_sigterms_stop_container_once() {
    // On a busy machine agent-cli may receive the second signal half a second later, which makes it a second request.
    let once = (0..5).any(|_| {
        let fake = Fake::start();
        fake.shared.state().ignores_term = true;
        let child = agent_cli(&fake, &["run", "--id", "web-1", "--", "x"]).spawn().unwrap();
        fake.called("Wait", 1, |call| matches!(call, Call::Wait(_)));
        send(&child, Signal::TERM);
        while pending_signals(child.id()) {
            std::thread::yield_now();
        }
        send(&child, Signal::TERM);
        fake.called("Stop", 1, is_stop);
        fake.shared.complete("web-1", exited(0));
        assert_eq!(finish(child).status, Some(0));
        (fake.count(is_stop), fake.count(is_kill)) == (1, 0)
    });
    assert!(once);
}

#[test]
fn second_ctrl_c_kills_while_output_continues() {
    let fake = Fake::start();
    fake.shared.state().ignores_term = true;
    let mut child = agent_cli(&fake, &["run", "--id", "web-1", "--", "x"]).spawn().unwrap();
    let mut lines = Lines::from_child(&mut child);
    fake.called("Wait", 1, |call| matches!(call, Call::Wait(_)));
    send(&child, Signal::INT);
    fake.called("Stop", 1, is_stop);
    fake.shared.log("web-1", LogStream::Stdout, b"not yet\n");
    assert_eq!(lines.next(), "not yet\n");
    send(&child, Signal::INT);
    fake.called("Signal", 1, is_kill);
    assert_eq!(finish(child).status, Some(137));
    assert!(!fake.is_there("web-1"));
}

#[test]
fn third_ctrl_c_exits_immediately() {
    let mut fake = Fake::start();
    fake.shared.state().ignores_term = true;
    let child = agent_cli(&fake, &["run", "--id", "web-1", "--", "x"]).spawn().unwrap();
    fake.called("Wait", 1, |call| matches!(call, Call::Wait(_)));
    send(&child, Signal::INT);
    fake.called("Stop", 1, is_stop);
    // An executord that was killed responds neither to the kill nor to the deletion.
    fake.die();
    send(&child, Signal::INT);
    // Use a different signal: two pending signals of the same number are merged.
    while pending_signals(child.id()) {
        std::thread::yield_now();
    }
    send(&child, Signal::TERM);
    let program = finish(child);
    // Two different signals at almost the same time may be delivered in either order.
    assert!(matches!(program.status, Some(143 | 130)), "{:?}", program.status);
    assert!(program.err().contains("rm -f web-1"), "{}", program.err());
}

fn pending_signals(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
    pending.trim().bytes().any(|digit| digit != b'0')
}

/// If a signal arrives while executord still handles Run, the container is stopped as soon as it exists.
#[test]
fn signal_during_run_request_stops_container() {
    let mut fake = Fake::start();
    fake.shared.state().hold_run = true;
    let child = agent_cli(&fake, &["run", "--detach", "--id", "web-1", "--", "x"]).spawn().unwrap();
    fake.started();
    send(&child, Signal::INT);
    while pending_signals(child.id()) {
        std::thread::yield_now();
    }
    fake.shared.state().hold_run = false;
    fake.die();
    fake.revive();
    let program = finish(child);
    assert_eq!((program.status, program.out().as_str()), (Some(143), ""));
    assert!(!fake.is_there("web-1"));
}

/// If the container has completed but its output is not read, Ctrl-C still terminates the program.
#[test]
fn blocked_reader_does_not_block_ctrl_c() {
    let fake = Fake::with(|shared, id| {
        for _ in 0..100 {
            shared.log(id, LogStream::Stdout, &[b'x'; 61_440]);
        }
        shared.complete(id, exited(0));
    });
    let mut child = agent_cli(&fake, &["run", "--id", "web-1", "--", "x"]).spawn().unwrap();
    let unread = child.stdout.take();
    fake.called("Wait", 1, |call| matches!(call, Call::Wait(_)));
    send(&child, Signal::INT);
    // If the signal arrived before agent-cli received the exit, the signal only requested a stop, and another signal is
    // needed.
    let deadline = Instant::now() + EVENT_TIMEOUT;
    while child.try_wait().unwrap().is_none() && fake.count(is_stop) == 0 {
        assert!(Instant::now() < deadline, "the signal had no effect");
        std::thread::yield_now();
    }
    if child.try_wait().unwrap().is_none() {
        send(&child, Signal::INT);
    }
    let program = finish(child);
    assert_eq!((program.status, program.err().as_str()), (Some(130), ""));
    assert!(!fake.is_there("web-1"));
    drop(unread);
}

/// `nohup agent-cli run ...`: an ignored signal stays ignored.
#[test]
fn an_ignored_signal_stays_ignored() {
    let fake = Fake::start();
    let agent = agent_cli(&fake, &[]);
    let script = format!("trap '' HUP; exec {} run -- x", agent.get_program().to_string_lossy());
    let mut shell = bare(Path::new("/bin/sh"), &["-c", &script]);
    let child = shell.env("EXECUTOR_SOCKET", fake.socket()).spawn().unwrap();
    fake.called("Wait", 1, |call| matches!(call, Call::Wait(_)));
    send(&child, Signal::HUP);
    // An ignored signal is never pending. A signal that is not ignored would be delivered before this call returns.
    assert!(!pending_signals(child.id()));
    assert_eq!(run(&fake, &["info"]).status, Some(0));
    assert_eq!(fake.count(is_stop), 0);
    fake.shared.complete(&fake.started(), exited(0));
    assert_eq!(finish(child).status, Some(0));
}
