//! Tests `run` until completion: statuses, streams, deletion, secrets and errors.

use std::io::Read;
use std::process::Stdio;

use executor_proto::v1::{LogStream, failure};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt};

use crate::fake::{Call, Fake, exited, failed, signaled};
use crate::program::{Lines, agent_cli, feed, finish, run};

#[test]
fn run_returns_exit_status_and_deletes_container() {
    let table = [
        (exited(0), 0, ""),
        (exited(3), 3, ""),
        (exited(255), 255, ""),
        (signaled(9), 137, ""),
        (signaled(15), 143, ""),
        (
            failed(failure::Kind::Exec, 2, "exec /nope: No such file or directory"),
            127,
            "agent-cli: exec /nope: No such file or directory\n",
        ),
        (
            failed(failure::Kind::Exec, 13, "exec /etc: Permission denied"),
            126,
            "agent-cli: exec /etc: Permission denied\n",
        ),
        (failed(failure::Kind::SupervisorLost, 0, "its shim was killed"), 125, "agent-cli: its shim was killed\n"),
    ];
    for (result, status, stderr) in table {
        let ended = result.clone();
        let fake = Fake::with(move |shared, id| shared.complete(id, ended.clone()));
        let program = run(&fake, &["run", "--id", "web-1", "--", "x"]);
        assert_eq!((program.status, program.out().as_str(), program.err().as_str()), (Some(status), "", stderr));
        assert!(!fake.is_there("web-1"), "{result:?}");
    }
}

#[test]
fn output_is_byte_exact_on_each_stream() {
    let big: Vec<u8> = (0..61_440u32).map(|n| (n % 251) as u8).collect();
    let sent = big.clone();
    let fake = Fake::with(move |shared, id| {
        shared.log(id, LogStream::Stdout, b"no newline");
        shared.log(id, LogStream::Stderr, b"\xff\x00\x1b[31merror\n");
        for _ in 0..40 {
            shared.log(id, LogStream::Stdout, &sent);
        }
        shared.complete(id, exited(0));
    });
    let program = run(&fake, &["run", "--", "x"]);
    assert_eq!((program.status, &program.stderr[..]), (Some(0), &b"\xff\x00\x1b[31merror\n"[..]));
    let expected = [b"no newline".to_vec(), big.repeat(40)].concat();
    assert!(program.stdout == expected, "{} bytes instead of {}", program.stdout.len(), expected.len());
}

/// The executor's own message is printed once, on its own line.
#[test]
fn a_failed_exec_is_reported_once() {
    let fake = Fake::with(|shared, id| {
        shared.log(id, LogStream::Stderr, b"partial");
        shared.log(id, LogStream::Executor, b"exec /nope: No such file or directory\n");
        shared.complete(id, failed(failure::Kind::Exec, 2, "exec /nope: No such file or directory"));
    });
    let program = run(&fake, &["run", "--", "/nope"]);
    assert_eq!(program.status, Some(127));
    assert_eq!(program.err(), "partial\nagent-cli: exec /nope: No such file or directory\n");
}

#[test]
fn an_oom_kill_is_reported() {
    let fake = Fake::with(|shared, id| {
        shared.complete(id, executor_proto::v1::Result { oom_killed: true, ..signaled(9) });
    });
    let program = run(&fake, &["run", "--", "x"]);
    assert_eq!(program.status, Some(137));
    assert!(program.err().contains("memory limit (64 MiB)"), "{}", program.err());
}

/// Missing output is reported once, whether or not the log contains the message.
#[test]
fn possibly_missing_output_is_reported_once() {
    const NOTICE: &str = "the last output may be missing: the shim was lost";
    for is_in_log in [true, false] {
        let fake = Fake::with(move |shared, id| {
            if is_in_log {
                shared.log(id, LogStream::Executor, format!("{NOTICE}\n").as_bytes());
            }
            shared.complete(id, executor_proto::v1::Result { output_incomplete: true, ..exited(3) });
        });
        let program = run(&fake, &["run", "--", "x"]);
        assert_eq!(program.status, Some(3));
        let reported = if is_in_log { NOTICE } else { "the last output may be missing" };
        assert_eq!(program.err(), format!("agent-cli: {reported}\n"));
    }
}

#[test]
fn run_keep_and_detach_leave_container() {
    let fake = Fake::with(|shared, id| shared.complete(id, exited(4)));
    assert_eq!(run(&fake, &["run", "--keep", "--id", "kept", "--", "x"]).status, Some(4));
    assert!(fake.is_there("kept"));

    let fake = Fake::start();
    let program = run(&fake, &["run", "--detach", "--id", "web-1", "--", "x"]);
    assert_eq!((program.status, program.out().as_str(), program.err().as_str()), (Some(0), "web-1\n", ""));
    assert!(fake.is_there("web-1"));
    assert_eq!(fake.count(|call| matches!(call, Call::Wait(_) | Call::Logs(_))), 0);

    let fake = Fake::with(|shared, id| shared.complete(id, failed(failure::Kind::Exec, 2, "exec x: not there")));
    let program = run(&fake, &["run", "--detach", "--json", "--id", "web-1", "--", "x"]);
    assert_eq!((program.status, program.err().as_str()), (Some(127), "agent-cli: exec x: not there\n"));
    assert_eq!(program.json()["id"], "web-1");
}

/// If the same request is sent again, the command attaches to the existing container and does not delete it.
#[test]
fn existing_container_is_not_deleted() {
    let fake = Fake::with(|shared, id| {
        shared.log(id, LogStream::Stdout, b"hello\n");
        shared.complete(id, exited(5));
    });
    assert_eq!(run(&fake, &["run", "-d", "--id", "web-1", "--", "x"]).status, Some(0));
    let again = run(&fake, &["run", "--id", "web-1", "--", "x"]);
    assert_eq!((again.status, again.out().as_str()), (Some(5), "hello\n"));
    assert!(fake.is_there("web-1"));
    let other = run(&fake, &["run", "--id", "web-1", "--", "y"]);
    assert_eq!(other.status, Some(125));
    assert!(other.err().contains("in use") && other.err().contains("--id"), "{}", other.err());
    assert!(fake.is_there("web-1"));
}

#[test]
fn json_goes_to_stdout_output_to_stderr() {
    let fake = Fake::with(|shared, id| {
        shared.log(id, LogStream::Stdout, b"out\n");
        shared.log(id, LogStream::Stderr, b"err\n");
        shared.complete(id, signaled(9));
    });
    let program = run(&fake, &["run", "--json", "--label", "app=web", "--", "x"]);
    assert_eq!((program.status, program.err().as_str()), (Some(137), "out\nerr\n"));
    let json = program.json();
    assert_eq!((&json["state"], &json["result"]["exit_status"]), (&"completed".into(), &137.into()));
    assert_eq!(json["spec"]["labels"]["app"], "web");
}

#[test]
fn secrets_arrive_and_are_not_repeated() {
    const CANARY: &str = "canary-91d3";
    let fake = Fake::with(|shared, id| shared.complete(id, exited(0)));
    let args = ["run", "--file", "db/token=@env:TOKEN", "--file", "db/password=@-", "--env", "TOKEN", "--", "x"];
    let mut child = agent_cli(&fake, &args).env("TOKEN", CANARY).stdin(Stdio::piped()).spawn().unwrap();
    feed(&mut child, b"from\nstdin\n");
    let program = finish(child);
    assert_eq!((program.status, program.err().as_str()), (Some(0), ""));
    let state = fake.shared.state();
    let Call::Run(request) = &state.calls[0] else { panic!("{:?}", state.calls) };
    let run_action = request.action.as_ref().unwrap().run.as_ref().unwrap();
    let files: Vec<_> = run_action.volume_mounted_files.iter().map(|f| (&f.path[..], &f.content[..])).collect();
    assert_eq!(files, [("db/token", CANARY.as_bytes()), ("db/password", b"from\nstdin\n")]);
    assert_eq!(run_action.env[0].value, CANARY);
    drop(state);

    for args in [
        ["run", "--file", "db/token=canary-91d3", "--", "x"],
        ["run", "--file", "canary-91d3", "--", "x"],
        ["run", "--env", "=canary-91d3", "--", "x"],
    ] {
        let program = run(&fake, &args);
        assert_eq!(program.status, Some(125));
        assert!(!program.err().contains(CANARY), "{}", program.err());
    }
}

#[test]
fn refused_request_lists_violations_by_flag() {
    let fake = Fake::start();
    let details = ErrorDetails::with_bad_request(vec![
        FieldViolation::new("action.run.volume_mounted_files[1].path", "`../x` contains `..`"),
        FieldViolation::new("limits.memory_bytes", "is 1024; at least 2097152"),
    ]);
    fake.shared.state().refuse_run = Some(Status::with_error_details(Code::InvalidArgument, "2 violations", details));
    let program = run(&fake, &["run", "--id", "web-1", "--", "x"]);
    assert_eq!((program.status, program.out().as_str()), (Some(125), ""));
    assert_eq!(
        program.err(),
        "agent-cli: run --id web-1: executord refused the request:\n  --file (number 2): `../x` contains `..`\n  --memory: is 1024; at least 2097152\n"
    );
    assert_eq!(fake.count(|call| matches!(call, Call::Delete(_))), 0);

    // With --json, the fields and the reasons are on standard output.
    let details = ErrorDetails::with_bad_request(vec![FieldViolation {
        reason: "INVALID_FORMAT".into(),
        ..FieldViolation::new("action.run.env[0].name", "is empty")
    }]);
    fake.shared.state().refuse_run = Some(Status::with_error_details(Code::InvalidArgument, "1 violation", details));
    let program = run(&fake, &["run", "--json", "--id", "web-1", "--", "x"]);
    let error = &program.json()["error"];
    assert_eq!((program.status, &error["code"]), (Some(125), &"INVALID_ARGUMENT".into()));
    let violation = serde_json::json!({
        "field": "action.run.env[0].name", "reason": "INVALID_FORMAT", "description": "is empty"
    });
    assert_eq!(error["violations"], serde_json::json!([violation]));
    assert!(program.err().starts_with("agent-cli: run --id web-1:"), "{}", program.err());

    fake.shared.state().refuse_run = Some(Status::unavailable("no launcher is connected"));
    let program = run(&fake, &["run", "--", "x"]);
    assert_eq!(program.status, Some(125));
    assert!(program.err().contains(": no launcher is connected"), "{}", program.err());
}

/// An argument that is not UTF-8 is reported by its position, because the argument may be a secret.
#[test]
fn non_utf8_arguments_are_reported_by_position() {
    use std::os::unix::ffi::OsStrExt as _;
    let fake = Fake::start();
    let mut command = agent_cli(&fake, &["run", "--env"]);
    command.arg(std::ffi::OsStr::from_bytes(b"A=\xffcanary")).args(["--", "x"]);
    let program = finish(command.spawn().unwrap());
    assert_eq!((program.status, program.out().as_str()), (Some(125), ""));
    assert!(program.err().contains("argument 3 (after --env) is not UTF-8"), "{}", program.err());
    assert!(!program.err().contains("canary"), "{}", program.err());
    assert_eq!(fake.count(|call| matches!(call, Call::Run(_))), 0);
}

#[test]
fn log_error_is_reported_and_container_deleted() {
    let fake = Fake::start();
    fake.shared.state().refuse_logs = Some(Status::internal("the log is unreadable"));
    let child = agent_cli(&fake, &["run", "--id", "web-1", "--", "x"]).spawn().unwrap();
    fake.called("StreamLogs", 1, |call| matches!(call, Call::Logs(_)));
    fake.shared.complete(&fake.started(), exited(0));
    let program = finish(child);
    assert_eq!(program.status, Some(125));
    assert!(program.err().contains("the log is unreadable"), "{}", program.err());
    assert!(!fake.is_there("web-1"));
}

/// If the reader of the output exits (`agent-cli run -- yes | head -1`), the container is stopped and no error is
/// printed.
#[test]
fn closed_output_stops_container_without_error() {
    let fake = Fake::start();
    let mut child = agent_cli(&fake, &["run", "--", "yes"]).spawn().unwrap();
    let id = fake.started();
    fake.shared.log(&id, LogStream::Stdout, b"y\n");
    let mut lines = Lines::from_child(&mut child);
    assert_eq!(lines.next(), "y\n");
    drop(lines);
    // Write more than once: a child started by another test may hold the pipe open for a moment.
    while child.try_wait().unwrap().is_none() && fake.count(|call| matches!(call, Call::Stop(_))) == 0 {
        fake.shared.log(&id, LogStream::Stdout, b"y\n");
        std::thread::yield_now();
    }
    let program = finish(child);
    assert_eq!((program.status, program.err().as_str()), (Some(141), ""));
    assert_eq!(
        fake.count(|call| matches!(call, Call::Stop(stop) if stop.grace_period.is_some_and(|g| g.seconds == 1))),
        1
    );
    assert!(!fake.is_there(&id));
}

/// A write error, such as a full disk, fails the command. A closed output does not.
#[test]
fn unwritable_output_is_error() {
    let fake = Fake::start();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let child = agent_cli(&fake, &["run", "--", "x"]).stdout(full).spawn().unwrap();
    let id = fake.started();
    fake.shared.log(&id, LogStream::Stdout, b"y\n");
    let program = finish(child);
    assert_eq!(program.status, Some(125));
    assert!(program.err().contains("standard output: No space left"), "{}", program.err());
    assert!(!fake.is_there(&id));
}

/// A slow reader of the output delays only the output, and gets all of it.
#[test]
fn a_slow_reader_gets_everything() {
    let fake = Fake::with(|shared, id| {
        for _ in 0..100 {
            shared.log(id, LogStream::Stdout, &[b'x'; 61_440]);
        }
        shared.complete(id, exited(0));
    });
    let mut child = agent_cli(&fake, &["run", "--", "x"]).spawn().unwrap();
    fake.called("Wait", 1, |call| matches!(call, Call::Wait(_)));
    let mut read = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut read).unwrap();
    assert_eq!((read.len(), finish(child).status), (100 * 61_440, Some(0)));
}

#[test]
fn usage_error_exits_125() {
    let fake = Fake::start();
    for args in [
        &["run"][..],
        &["run", "--memory", "0", "--", "x"],
        &["run", "--nofile", "x", "--", "y"],
        &["nope"],
        &["ps", "--nope"],
    ] {
        let program = run(&fake, args);
        assert_eq!((program.status, program.out().as_str()), (Some(125), ""), "{args:?}");
    }
    assert_eq!(run(&fake, &["--help"]).status, Some(0));
    assert!(run(&fake, &["run", "--help"]).out().contains("128+N"));
}
