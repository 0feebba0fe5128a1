//! Clients that are attached to a container's own process.

use executor_proto::v1::attach_request::Part;
use executor_proto::v1::{AttachStart, EndOfInput, RunRequest, WindowSize};
use integration::api::exit;
use integration::daemon::Daemon;
use integration::request::{Words as _, program, sh, sleeper};
use integration::streams::Attached;
use integration::supervised::{Part as Process, Supervised};
use integration::wait;
use tonic::Code;

fn attached(daemon: &Daemon, input: bool) -> Attached {
    Attached::begin(&daemon.api, AttachStart { id: "c".into(), input, ..AttachStart::default() }).expect("attach")
}

fn interactive(request: RunRequest, terminal: bool) -> RunRequest {
    RunRequest { stdin: true, terminal, ..request }
}

/// A shell on a terminal: the prompt that was there before anybody came, what is typed, the size of the window, Ctrl-C; all
/// of it in the log, too, with secrets masked in both.
#[test]
fn a_shell_on_a_terminal() {
    let daemon = Daemon::start();
    let secret = "canary-0123456789-abcdef";
    let shell = program("/bin/bash", &["--norc", "-i"]).id("c").env("PS1", "ready> ").secret_env("SECRET", secret);
    daemon.api.started(interactive(shell, true));
    wait::until("its prompt", || daemon.api.logs_so_far("c").contains("ready> ").then_some(()));
    let mut client = attached(&daemon, true);
    assert!(client.terminal);
    client.until("ready> ");
    client.send(Part::Window(WindowSize { rows: 33, columns: 144 }));
    client.types(b"test -t 0 && stty size\n");
    client.until("33 144");
    client.types(b"echo $TERM; echo to the cons''ole >/dev/console; sleep 0\n");
    client.until("xterm");
    client.until("to the console");
    client.types(b"echo $SECRET; (echo go''ing; sleep 1000)\n");
    client.until("going");
    client.types(b"\x03");
    client.types(b"exit 7\n");
    let client = client.end().unwrap();
    let (seen, log) = (String::from_utf8_lossy(&client.stdout).into_owned(), daemon.api.output("c").text());
    for text in [&seen, &log] {
        assert!(text.contains("REDACTED") && !text.contains(secret), "{text}");
    }
    assert_eq!(exit(&daemon.api.wait("c").unwrap()), Ok(7));
}

/// Input by a pipe: one client, until another takes over; then its end.
#[test]
fn input_by_a_pipe() {
    let daemon = Daemon::start();
    daemon.api.started(interactive(sh("cat; echo err >&2; exit 3").id("c"), false));
    let (mut first, watcher) = (attached(&daemon, true), attached(&daemon, false));
    first.types(b"one\n");
    first.until("one");
    let again = AttachStart { id: "c".into(), input: true, ..AttachStart::default() };
    let told = Attached::begin(&daemon.api, again.clone()).err().unwrap();
    assert_eq!(told.code(), Code::FailedPrecondition, "{told}");
    let second = Attached::begin(&daemon.api, AttachStart { take_over: true, ..again }).unwrap();
    assert_eq!(first.end().err().unwrap().code(), Code::Aborted);
    second.types(b"two\n");
    second.send(Part::EndOfInput(EndOfInput {}));
    let second = second.end().unwrap();
    assert_eq!((&*second.stdout, &*second.stderr), (&b"two\n"[..], &b"err\n"[..]));
    let watcher = watcher.end().unwrap();
    assert_eq!((&*watcher.stdout, &*watcher.stderr), (&b"one\ntwo\n"[..], &b"err\n"[..]));
    assert_eq!(exit(&daemon.api.wait("c").unwrap()), Ok(3));
    assert_eq!(daemon.api.output("c").text(), "one\ntwo\n");
}

#[test]
fn what_cannot_be_attached_to() {
    let daemon = Daemon::start();
    daemon.api.started(sleeper("c"));
    let begin =
        |id: &str, input| Attached::begin(&daemon.api, AttachStart { id: id.into(), input, ..AttachStart::default() });
    assert_eq!(begin("nobody", false).err().unwrap().code(), Code::NotFound);
    let told = begin("c", true).err().unwrap();
    assert!(told.code() == Code::FailedPrecondition && told.message().contains("stdin"), "{told}");
    let all: Vec<Attached> = (0..16).map(|_| begin("c", false).unwrap()).collect();
    assert_eq!(begin("c", false).err().unwrap().code(), Code::ResourceExhausted);
    drop(all);
    daemon.api.stop("c", Some(0)).unwrap();
    daemon.api.wait("c").unwrap();
    assert_eq!(begin("c", false).err().unwrap().code(), Code::FailedPrecondition);
}

/// A client that only watches and does not read is let go; the process and its log go on as if it were not there.
#[test]
fn a_watcher_that_does_not_read_holds_up_nobody() {
    let daemon = Daemon::start();
    daemon.api.started(interactive(sh("read go; seq 1 2000000; echo done; sleep 100000").id("c"), false));
    let slow = attached(&daemon, false);
    let start = AttachStart { id: "c".into(), input: true, no_output: true, ..AttachStart::default() };
    let typist = Attached::begin(&daemon.api, start).unwrap();
    typist.types(b"go\n");
    wait::until("it wrote all", || daemon.api.logs_so_far("c").contains("done").then_some(()));
    let told = slow.end().err().unwrap();
    assert_eq!(told.code(), Code::ResourceExhausted, "{told}");
}

/// The terminal is the shim's: it outlives executord.
#[test]
fn the_terminal_outlives_executord() {
    let mut node = Supervised::start();
    let script = "trap 'echo hup' HUP; while read line; do echo got-$line; done";
    node.api.started(interactive(sh(script).id("c"), true));
    let begin = |node: &Supervised| {
        let start = AttachStart { id: "c".into(), input: true, take_over: true, no_output: false };
        Attached::begin(&node.api, start).unwrap()
    };
    let mut client = begin(&node);
    client.types(b"1\n");
    client.until("got-1");
    node.kill(Process::Executord);
    assert!(client.end().is_err());
    node.revive().unwrap();
    wait::until("its shim is known again", || node.api.get("c").ok().filter(|c| c.started_at.is_some()));
    let mut client = begin(&node);
    client.types(b"2\n");
    assert!(!client.until("got-2").contains("hup"));
}
