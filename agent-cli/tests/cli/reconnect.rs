//! Tests commands during which executord stops and restarts.

use std::time::Duration;

use executor_proto::v1::LogStream;

use crate::fake::{Call, Fake, exited};
use crate::program::{Lines, agent_cli, finish};

#[test]
fn run_resumes_logs_after_executord_restart() {
    let mut fake = Fake::start();
    let mut child = agent_cli(&fake, &["run", "--id", "web-1", "--", "x"]).spawn().unwrap();
    let mut lines = Lines::from_child(&mut child);
    fake.started();
    fake.shared.log_at("web-1", 1, LogStream::Stdout, b"one\n");
    fake.shared.log_at("web-1", 2, LogStream::Stdout, b"two\n");
    assert_eq!((lines.next(), lines.next()), ("one\n".into(), "two\n".into()));

    fake.die();
    // These lines are written while no client is connected. The first has the same timestamp as the last line that was
    // read.
    fake.shared.log_at("web-1", 2, LogStream::Stdout, b"three\n");
    fake.shared.log_at("web-1", 3, LogStream::Stdout, b"four\n");
    fake.revive();
    assert_eq!((lines.next(), lines.next()), ("three\n".into(), "four\n".into()));

    fake.die();
    fake.shared.complete("web-1", exited(6));
    fake.revive();
    assert_eq!(lines.rest(), "");
    let program = finish(child);
    assert_eq!((program.status, program.err().as_str()), (Some(6), ""));
    assert!(!fake.is_there("web-1"));
    let resumed = |call: &Call| matches!(call, Call::Logs(logs) if logs.offset.is_some_and(|offset| offset >= 8));
    assert!(fake.count(resumed) >= 2);
}

/// If the response to a request is lost, the request is repeated, and the container still belongs to the command.
#[test]
fn interrupted_request_is_retried_with_same_id() {
    let mut fake = Fake::start();
    fake.shared.state().hold_run = true;
    let child = agent_cli(&fake, &["run", "--", "x"]).spawn().unwrap();
    let id = fake.started();
    fake.shared.state().hold_run = false;
    fake.die();
    fake.revive();
    fake.called("Run again", 2, |call| matches!(call, Call::Run(run) if run.id == id));
    fake.shared.complete(&id, exited(2));
    assert_eq!(finish(child).status, Some(2));
    assert!(!fake.is_there(&id));
}

/// If executord closes a connection with GOAWAY between two calls or during a call, the command does not fail.
#[test]
fn goaway_does_not_fail_command() {
    let mut fake = Fake::with(|shared, id| {
        shared.log(id, LogStream::Stdout, b"hello\n");
        shared.complete(id, exited(3));
    });
    for micros in [1, 100, 300, 1000, 3000] {
        fake.limit_connections(Duration::from_micros(micros));
        for _ in 0..10 {
            let program = crate::program::run(&fake, &["run", "--", "x"]);
            let ended = (program.status, program.out(), program.err());
            assert_eq!(ended, (Some(3), "hello\n".into(), String::new()), "{micros} us");
        }
    }
    assert!(fake.shared.state().containers.is_empty());
}

#[test]
fn wait_logs_events_resume_after_restart() {
    let mut fake = Fake::start();
    assert_eq!(crate::program::run(&fake, &["run", "-d", "--id", "web-1", "--", "x"]).status, Some(0));
    let waiting = agent_cli(&fake, &["wait", "web-1"]).spawn().unwrap();
    let following = agent_cli(&fake, &["logs", "-f", "web-1"]).spawn().unwrap();
    let mut watching = agent_cli(&fake, &["events", "--after", "0", "--json"]).spawn().unwrap();
    let mut events = Lines::from_child(&mut watching);
    assert!(events.next().contains("\"kind\":\"running\""));
    fake.called("Wait", 1, |call| matches!(call, Call::Wait(_)));
    fake.called("StreamLogs", 1, |call| matches!(call, Call::Logs(_)));
    fake.die();
    fake.shared.log("web-1", LogStream::Stderr, b"meanwhile\n");
    fake.shared.complete("web-1", exited(7));
    fake.revive();
    assert_eq!(finish(waiting).status, Some(7));
    let logs = finish(following);
    assert_eq!((logs.status, logs.out().as_str(), logs.err().as_str()), (Some(0), "", "meanwhile\n"));
    let completed = events.next();
    assert!(completed.contains("\"kind\":\"completed\"") && completed.contains("\"exit_status\":7"), "{completed}");
    // The reader closes the output. One event may not be enough: until its `execve`, a child started by another test
    // also has the pipe open.
    drop(events);
    let mut number = 2;
    while watching.try_wait().unwrap().is_none() {
        crate::program::run(&fake, &["run", "-d", "--id", &format!("web-{number}"), "--", "x"]);
        number += 1;
    }
    let events = finish(watching);
    assert_eq!((events.status, events.err().as_str()), (Some(141), ""));
}

#[test]
fn missing_executord_fails_at_once_with_hint() {
    let mut fake = Fake::start();
    fake.die();
    for args in [&["run", "--", "x"][..], &["ps"], &["wait", "web-1"]] {
        let program = crate::program::run(&fake, args);
        assert_eq!(program.status, Some(125));
        let socket = fake.socket().display().to_string();
        assert!(program.err().contains(&socket) && program.err().contains("--local"), "{}", program.err());
    }
}
