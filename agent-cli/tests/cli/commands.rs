//! Tests all commands except `run`.

use std::path::Path;

use executor_proto::v1::{LogStream, State};

use crate::fake::{Call, Fake, TOKEN, signaled};
use crate::program::{agent_cli, feed, finish, run};

fn with_three() -> Fake {
    let fake = Fake::start();
    for (id, state) in [("a", State::Running), ("b", State::Running), ("c", State::Running)] {
        fake.add(id, state);
    }
    fake.shared.complete("c", signaled(9));
    fake
}

#[test]
fn ps_lists_all_pages_hides_completed() {
    let fake = with_three();
    fake.shared.state().page_size = 1;
    let text = run(&fake, &["ps"]);
    let rows: Vec<String> =
        text.out().lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!((text.status, rows), (Some(0), vec!["ID STATE".into(), "a running".into(), "b running".into()]));
    assert!(!text.out().contains('\u{1b}'), "no colour in a pipe");
    assert_eq!(run(&fake, &["ps", "-aq"]).out(), "a\nb\nc\n");
    assert_eq!(run(&fake, &["ps", "-q", "--state", "completed"]).out(), "c\n");
    let json = run(&fake, &["ps", "-a", "--json"]).json();
    assert_eq!((json.as_array().unwrap().len(), &json[2]["result"]["exit"]["signal_name"]), (3, &"SIGKILL".into()));
    run(&fake, &["ps", "--label", "app=web", "--label", "tier=1"]);
    assert!(
        fake.count(|call| matches!(call, Call::List(list) if list.labels.len() == 2 && list.labels["app"] == "web"))
            > 0
    );
}

#[test]
fn inspect_and_wait_report_missing_containers() {
    let fake = with_three();
    let text = run(&fake, &["inspect", "c"]);
    assert!(text.out().starts_with("c  completed\n") && text.out().contains("killed by SIGKILL (9)"), "{}", text.out());
    assert_eq!(run(&fake, &["inspect", "c", "--json"]).json()["result"]["exit_status"], 137);
    let wait = run(&fake, &["wait", "c"]);
    assert_eq!((wait.status, wait.out().as_str()), (Some(137), ""));
    assert_eq!(run(&fake, &["wait", "c", "--json"]).json()["id"], "c");
    for command in ["inspect", "wait", "logs", "stop", "rm"] {
        let program = run(&fake, &[command, "nope"]);
        assert_eq!((program.status, program.out().as_str()), (Some(125), ""), "{command}");
        assert!(program.err().contains("no container nope"), "{}", program.err());
    }
}

#[test]
fn stats_print_one_reading_or_follow() {
    let fake = with_three();
    let text = run(&fake, &["stats", "--no-stream", "a"]);
    let rows: Vec<Vec<String>> =
        text.out().lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
    assert_eq!((text.status, rows.len(), &*rows[1][0], &*rows[1][3]), (Some(0), 2, "a", "1.500"), "{}", text.out());
    let json = run(&fake, &["stats", "--no-stream", "--json", "a", "b"]).json();
    assert_eq!((json.as_array().unwrap().len(), &json[1]["usage"]["cpu"]["total_ns"]), (2, &1_500_000_000_u64.into()));
    // The fake sends two readings; the first reading is split into two messages.
    let followed = run(&fake, &["stats", "a"]);
    assert_eq!((followed.status, followed.out().matches("running").count()), (Some(0), 2), "{}", followed.out());
    assert!(!followed.out().contains('\u{1b}'), "nothing is cleared in a pipe");
    let refused = run(&fake, &["stats", "--no-stream", "nope"]);
    assert!(refused.status == Some(125) && refused.err().contains("no container nope"), "{}", refused.err());
}

#[test]
fn logs_separate_streams() {
    let fake = with_three();
    fake.shared.log_at("a", 1, LogStream::Stdout, b"out\n");
    fake.shared.log_at("a", 2, LogStream::Stderr, b"err \xff\n");
    let program = run(&fake, &["logs", "a"]);
    assert_eq!(
        (program.status, &program.stdout[..], &program.stderr[..]),
        (Some(0), &b"out\n"[..], &b"err \xff\n"[..])
    );
    let json = run(&fake, &["logs", "--json", "--since", "1970-01-01T00:00:01.000000002Z", "a"]);
    assert_eq!(
        json.out(),
        "{\"time\":\"1970-01-01T00:00:01.000000002Z\",\"stream\":\"stderr\",\"log_source\":\"\",\"encoding\":\"base64\",\"data\":\"ZXJyIP8K\",\"offset\":4,\"sequence\":2,\"gap\":null,\"log_tags\":{}}\n"
    );
}

#[test]
fn stop_waits_for_the_end() {
    let fake = with_three();
    let program = run(&fake, &["stop", "a", "--grace", "1m30s", "--json"]);
    assert_eq!((program.status, &program.json()["state"]), (Some(0), &"completed".into()));
    assert_eq!(
        fake.count(|call| matches!(call, Call::Stop(stop) if stop.grace_period.is_some_and(|g| g.seconds == 90))),
        1
    );
    fake.shared.state().ignores_term = true;
    let program = run(&fake, &["stop", "b", "--no-wait", "--signal", "USR1"]);
    assert!(fake.count(|call| matches!(call, Call::Stop(stop) if stop.id == "b" && stop.signal == 10)) == 1);
    assert_eq!((program.status, program.out().as_str()), (Some(0), ""));
}

/// A unique prefix is resolved, and a complete id takes precedence. The error for an ambiguous prefix lists all
/// matching ids.
#[test]
fn unique_id_prefix_selects_container() {
    let fake = Fake::start();
    for id in ["web", "web-1", "web-22", "job-1"] {
        fake.add(id, State::Running);
    }
    fake.shared.log_at("job-1", 1, LogStream::Stdout, b"hello\n");
    assert_eq!(run(&fake, &["inspect", "jo", "--json"]).json()["id"], "job-1");
    assert_eq!(run(&fake, &["logs", "j"]).out(), "hello\n");
    assert_eq!(run(&fake, &["inspect", "web", "--json"]).json()["id"], "web");
    assert_eq!(run(&fake, &["signal", "web-2", "HUP"]).status, Some(0));
    assert_eq!(fake.count(|call| matches!(call, Call::Signal(signal) if signal.id == "web-22")), 1);
    let ambiguous = run(&fake, &["rm", "-f", "web-"]);
    assert_eq!((ambiguous.status, ambiguous.out().as_str()), (Some(125), ""));
    assert!(ambiguous.err().contains("begin with web-: web-1, web-22; give more characters\n"), "{}", ambiguous.err());
    assert_eq!(run(&fake, &["rm", "-f", "web-2", "job"]).out(), "web-22\njob-1\n");
    let gone = run(&fake, &["stop", "job"]);
    assert!(gone.status == Some(125) && gone.err().contains("no container job"), "{}", gone.err());
}

#[test]
fn stop_and_wait_accept_several_ids() {
    let fake = with_three();
    let stopped = run(&fake, &["stop", "a", "b"]);
    assert_eq!((stopped.status, stopped.out().as_str(), stopped.err().as_str()), (Some(0), "", ""));
    let waited = run(&fake, &["wait", "a", "c", "b"]);
    assert_eq!((waited.status, waited.out().as_str()), (Some(143), "143\n137\n143\n"));
    let some = run(&fake, &["stop", "--json", "c", "nope"]);
    assert_eq!(some.status, Some(125));
    let json = some.json();
    assert_eq!((&json[0]["container"]["state"], &json[0]["error"]), (&"completed".into(), &serde_json::Value::Null));
    assert!(json[1]["error"].as_str().unwrap().contains("no container nope"), "{json}");
}

#[test]
fn logs_with_times_and_the_last_lines() {
    let fake = with_three();
    fake.shared.log_at("a", 1, LogStream::Stdout, b"one\n");
    fake.shared.log_at("a", 2, LogStream::Stdout, b"tw");
    fake.shared.log_at("a", 3, LogStream::Stdout, b"o\n");
    let stamped = run(&fake, &["logs", "-t", "--tail", "7", "a"]);
    assert_eq!(stamped.out(), "1970-01-01T00:00:01.000000001Z one\n1970-01-01T00:00:01.000000002Z two\n");
    assert_eq!(fake.count(|call| matches!(call, Call::Logs(logs) if logs.tail == Some(7))), 1);
    assert_eq!(run(&fake, &["logs", "-n", "all", "a"]).out(), "one\ntwo\n");
    assert_eq!(fake.count(|call| matches!(call, Call::Logs(logs) if logs.tail.is_none())), 1);
}

#[test]
fn ps_format_uses_template() {
    let fake = with_three();
    assert_eq!(run(&fake, &["ps", "--format", "{{.ID}}={{.State}}"]).out(), "a=running\nb=running\n");
    let bad = run(&fake, &["ps", "--format", "{{.Nope}}"]);
    assert!(bad.status == Some(125) && bad.err().contains(".Addresses"), "{}", bad.err());
}

#[test]
fn signal_takes_names_and_numbers() {
    let fake = with_three();
    for (text, number) in [("USR1", 10), ("sigterm", 15), ("9", 9)] {
        assert_eq!(run(&fake, &["signal", "a", text]).status, Some(0));
        assert!(fake.count(|call| matches!(call, Call::Signal(signal) if signal.signal == number)) == 1, "{text}");
    }
    assert_eq!(run(&fake, &["signal", "--json", "a", "HUP"]).json(), serde_json::json!({"id": "a", "signal": 1}));
}

#[test]
fn rm_continues_after_failed_removal() {
    let fake = with_three();
    let program = run(&fake, &["rm", "a", "c", "nope"]);
    assert_eq!((program.status, program.out().as_str()), (Some(125), "c\n"));
    for line in ["remove a: a is running", "remove nope: no container nope", "2 of 3 failed"] {
        assert!(program.err().contains(line), "{}", program.err());
    }
    let forced = run(&fake, &["rm", "-f", "--json", "a", "nope"]);
    assert_eq!(forced.status, Some(125));
    let json = forced.json();
    assert_eq!((&json[0]["deleted"], &json[1]["deleted"]), (&true.into(), &false.into()));
    assert!(json[1]["error"].as_str().unwrap().contains("no container nope"));
    assert!(!fake.is_there("a"));
}

#[test]
fn info_for_people_and_for_programs() {
    let fake = Fake::start();
    let text = run(&fake, &["info"]);
    assert!(text.out().starts_with("executord 9.9.9\n") && text.out().contains("250"), "{}", text.out());
    let json = run(&fake, &["info", "--json"]).json();
    assert_eq!((&json["version"], &json["total"]["containers"]), (&"9.9.9".into(), &250.into()));
}

/// The socket can be given by a flag or a variable, as a path or a URL; the flag takes precedence.
#[test]
fn socket_flag_overrides_environment() {
    let fake = Fake::start();
    let socket = fake.socket().to_str().unwrap();
    for socket in [socket.to_owned(), format!("unix://{socket}")] {
        let mut command = agent_cli(&fake, &["info", "--socket", &socket]);
        let child = command.env("EXECUTOR_SOCKET", "/nonexistent.sock").spawn().unwrap();
        assert_eq!(finish(child).status, Some(0));
    }
}

/// `docs/agent-cli.md` is the output of `generate markdown`. `UPDATE=1 cargo test -p agent-cli --test cli` updates it.
#[test]
fn command_reference_is_current() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(run(&fake, &["generate", "markdown", "--out", dir.path().to_str().unwrap()]).status, Some(0));
    let written = std::fs::read_to_string(dir.path().join("agent-cli.md")).unwrap();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/agent-cli.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&page, &written).unwrap();
    }
    let committed = std::fs::read_to_string(&page).unwrap();
    let differs = committed.lines().zip(written.lines()).find(|(one, other)| one != other);
    assert!(committed == written, "docs/agent-cli.md is not current: {differs:?}");
    assert!(written.contains("### agent-cli run") && written.contains("#### agent-cli image pull"), "the control");
}

#[test]
fn manual_and_completions_are_written() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("new/dir");
    assert_eq!(run(&fake, &["generate", "man", "--out", out.to_str().unwrap()]).status, Some(0));
    let page = |name: &str| std::fs::read_to_string(out.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    for name in ["agent-cli.1", "agent-cli-run.1", "agent-cli-wait.1"] {
        let text = page(name);
        assert!(text.contains("EXIT STATUS") && text.contains("128+N") && text.contains("EXECUTOR_SOCKET"), "{name}");
    }
    assert!(page("agent-cli-run.1").contains("@env:VARIABLE"));
    assert!(page("agent-cli-bindings-show.1").contains("reveal"));
    assert!(page("agent-cli-generate.1").contains("completions"));
    assert_eq!(run(&fake, &["generate", "completions", "--out", out.to_str().unwrap()]).status, Some(0));
    for name in ["agent-cli.bash", "_agent-cli", "agent-cli.fish"] {
        assert!(page(name).contains("detach"), "{name}");
    }
}

#[test]
fn rotate_sends_files_and_prints_generation() {
    let fake = with_three();
    let mut child =
        agent_cli(&fake, &["rotate", "a", "--file", "db/password=@-", "--remove", "old", "--signal", "HUP"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
    feed(&mut child, b"canary-of-rotate");
    let program = finish(child);
    assert_eq!((program.status, &*program.out(), &*program.err()), (Some(0), "1\n", ""));
    let sent = |call: &Call| match call {
        Call::Update(sent) => {
            let content = sent.files.first().map_or(&[][..], |file| &file.content);
            (content, sent.signal, sent.removed_paths.len()) == (b"canary-of-rotate", 1, 1)
        }
        _ => false,
    };
    assert_eq!(fake.count(sent), 1);
    let json = run(&fake, &["rotate", "a", "--remove", "x", "--expect-generation", "1", "--json"]).json();
    assert_eq!(
        (&json["files_generation"], &json["files_updated_at"]),
        (&2.into(), &"1970-01-01T00:00:09.000000000Z".into())
    );
    let stale = run(&fake, &["rotate", "a", "--remove", "x", "--expect-generation", "1"]);
    assert_eq!((stale.status, stale.out().as_str()), (Some(125), ""));
    assert!(stale.err().contains("have generation 2") && stale.err().contains("agent-cli inspect"), "{}", stale.err());
    let usage = run(&fake, &["rotate", "a"]);
    assert!(usage.err().contains("at least one --file"), "{}", usage.err());
}

/// A single value is printed unchanged, and all values only with a flag. The token is read from a file and appears in
/// no message.
#[test]
fn secrets_prints_all_values_only_with_flag() {
    let fake = Fake::start();
    let dir = tempfile::tempdir().unwrap();
    let (right, wrong) = (dir.path().join("right"), dir.path().join("wrong"));
    std::fs::write(&right, format!("{TOKEN}\n")).unwrap();
    std::fs::write(&wrong, "canary-token").unwrap();
    let with = |token: &Path, rest: &[&str]| {
        run(&fake, &[&["secrets", "--token-file", token.to_str().unwrap()], rest].concat())
    };
    let values: [(&[&str], &[u8]); 4] = [
        (&["--env", "PW"], b"canary one"),
        (&["--arg", "3"], b"canary two\n"),
        (&["--file", "/etc/a"], b"x\ny"),
        (&["--file", "/etc/b"], b"\xff\0"),
    ];
    for (asked, value) in values {
        let program = with(&right, asked);
        assert_eq!((program.status, &program.stdout[..]), (Some(0), value), "{asked:?}: {}", program.err());
    }
    let all = with(&right, &["--reveal"]).out();
    assert_eq!(all, "PW=canary one\n[3]=canary two\\n\n/etc/a=x\\ny\n/etc/b=(2 bytes that are not text: use --file)\n");
    let json = with(&right, &["--json"]).json();
    assert_eq!((&json["environment"][0]["value"], &json["arguments"][0]["index"]), (&"canary one".into(), &3.into()));
    assert_eq!((&json["files"][1]["encoding"], &json["files"][1]["content"]), (&"base64".into(), &"/wA=".into()));

    let refused: [(&Path, &[&str], &str); 6] = [
        (&right, &[], "prints one value"),
        (&right, &["--env", "NOPE"], "the container has no secret variable NOPE"),
        (&right, &["--arg", "0"], "no secret argument 0"),
        (&right, &["--file", "/etc/c"], "no secret file /etc/c"),
        (&wrong, &["--env", "PW"], "does not accept the token in"),
        (&dir.path().join("none"), &["--env", "PW"], "No such file"),
    ];
    for (token, asked, expected) in refused {
        let program = with(token, asked);
        assert_eq!((program.status, program.out().as_str()), (Some(125), ""), "{asked:?}");
        assert!(program.err().contains(expected) && !program.err().contains("canary"), "{}", program.err());
    }
    assert!(run(&fake, &["secrets", "--env", "PW"]).err().contains("--token-file"));
}
