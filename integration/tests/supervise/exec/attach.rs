//! Tests clients that are attached to a container's own process.

use executor_proto::v1::attach_request::Part;
use executor_proto::v1::{AttachStart, EndOfInput, RunRequest, State, WindowSize};
use integration::api::{Api, exit, pid};
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder as _, program, sh, sleeper};
use integration::rootfs::Rootfs;
use integration::streams::Attached;
use integration::supervised::{Part as Process, Supervised};
use integration::{host, wait};
use tonic::Code;

fn attached(daemon: &Daemon, input: bool) -> Attached {
    Attached::start(&daemon.api, AttachStart { id: "c".into(), input, ..AttachStart::default() }).expect("attach")
}

fn interactive(request: RunRequest, terminal: bool) -> RunRequest {
    RunRequest { stdin: true, terminal, ..request }
}

/// An attached client can use a shell on a terminal: it gets the prompt from before the attachment, typed input works,
/// the window size changes, and Ctrl-C interrupts. All output is also in the log, and secrets are masked in both.
#[test]
fn shell_on_a_terminal() {
    let daemon = Daemon::start();
    let secret = "canary-0123456789-abcdef";
    let shell = program("/bin/bash", &["--norc", "-i"]).id("c").env("PS1", "ready> ").secret_env("SECRET", secret);
    let started = daemon.api.started(interactive(shell, true));
    wait::until("the shell's prompt", || daemon.api.logs_so_far("c").contains("ready> ").then_some(()));
    let mut client = attached(&daemon, true);
    assert!(client.terminal);
    client.until("ready> ");
    client.send(Part::Window(WindowSize { rows: 33, columns: 144 }));
    client.send_input(b"test -t 0 && stty size\n");
    client.until("33 144");
    client.send_input(b"echo $TERM; echo to the cons''ole >/dev/console; sleep 0\n");
    client.until("xterm");
    client.until("to the console");
    client.send_input(b"echo $SECRET; (echo go''ing; sleep 1000)\n");
    client.until("going");
    // Wait until the process sleeps: bash can lose a signal during a fork.
    let sleeps = |pid: &i32| host::status(*pid, "Name").as_deref() == Some("sleep");
    wait::until("sleep runs", || host::descendants(pid(&started)).iter().any(sleeps).then_some(()));
    client.send_input(b"\x03");
    client.send_input(b"exit 7\n");
    let client = client.end().unwrap();
    let (seen, log) = (String::from_utf8_lossy(&client.stdout).into_owned(), daemon.api.output("c").text());
    for text in [&seen, &log] {
        assert!(text.contains("REDACTED") && !text.contains(secret), "{text}");
    }
    assert_eq!(exit(&daemon.api.wait("c").unwrap()), Ok(7));
}

/// Input through a pipe comes from one client. Another client can replace it. If the client's input ends, the process's
/// input ends.
#[test]
fn input_by_a_pipe() {
    let daemon = Daemon::start();
    daemon.api.started(interactive(sh("cat; echo err >&2; exit 3").id("c"), false));
    let (mut first, watcher) = (attached(&daemon, true), attached(&daemon, false));
    first.send_input(b"one\n");
    first.until("one");
    let again = AttachStart { id: "c".into(), input: true, ..AttachStart::default() };
    let reported = Attached::start(&daemon.api, again.clone()).err().unwrap();
    assert_eq!(reported.code(), Code::FailedPrecondition, "{reported}");
    let second = Attached::start(&daemon.api, AttachStart { take_over: true, ..again }).unwrap();
    assert_eq!(first.end().err().unwrap().code(), Code::Aborted);
    second.send_input(b"two\n");
    second.send(Part::EndOfInput(EndOfInput {}));
    let second = second.end().unwrap();
    assert_eq!((&*second.stdout, &*second.stderr), (&b"two\n"[..], &b"err\n"[..]));
    let watcher = watcher.end().unwrap();
    assert_eq!((&*watcher.stdout, &*watcher.stderr), (&b"one\ntwo\n"[..], &b"err\n"[..]));
    assert_eq!(exit(&daemon.api.wait("c").unwrap()), Ok(3));
    assert_eq!(daemon.api.output("c").text(), "one\ntwo\n");
}

#[test]
fn invalid_attach_is_refused() {
    let daemon = Daemon::start();
    daemon.api.started(sleeper("c"));
    let start =
        |id: &str, input| Attached::start(&daemon.api, AttachStart { id: id.into(), input, ..AttachStart::default() });
    assert_eq!(start("no-such", false).err().unwrap().code(), Code::NotFound);
    let reported = start("c", true).err().unwrap();
    assert!(reported.code() == Code::FailedPrecondition && reported.message().contains("stdin"), "{reported}");
    let all: Vec<Attached> = (0..16).map(|_| start("c", false).unwrap()).collect();
    assert_eq!(start("c", false).err().unwrap().code(), Code::ResourceExhausted);
    drop(all);
    daemon.api.stop("c", Some(0)).unwrap();
    daemon.api.wait("c").unwrap();
    assert_eq!(start("c", false).err().unwrap().code(), Code::FailedPrecondition);
}

/// If a read-only client does not read, it receives a message about missed output. The process and its log continue
/// unaffected.
#[test]
fn blocked_watcher_does_not_block_process() {
    let daemon = Daemon::start();
    daemon.api.started(interactive(sh("read go; seq 1 2000000; echo done; sleep 100000").id("c"), false));
    let mut slow = attached(&daemon, false);
    let start = AttachStart { id: "c".into(), input: true, no_output: true, ..AttachStart::default() };
    let typist = Attached::start(&daemon.api, start).unwrap();
    typist.send_input(b"go\n");
    wait::until("the process has written everything", || daemon.api.logs_so_far("c").contains("done").then_some(()));
    slow.until("done");
    assert!(slow.missed > 0, "the client must miss a part of the 14 MB");
    assert_eq!(slow.stdout.len() as u64 + slow.missed, slow.place);
}

/// Returns bytes of all values without a repeated pattern, so that a lost or duplicated packet is detected.
fn noise(length: u64) -> Vec<u8> {
    (0..length).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 29) as u8).collect()
}

/// Creates a root file system that contains the file `/bytes`, and a daemon that keeps at most 64 KiB of a log.
fn with_bytes(bytes: &[u8]) -> (Daemon, Rootfs) {
    let rootfs = Rootfs::busybox();
    std::fs::write(rootfs.path().join("bytes"), bytes).expect("write");
    (Setup::default().config("[launcher]\nlog_bytes_max = 65536\n").start(), rootfs)
}

fn reader(id: &str) -> AttachStart {
    AttachStart { id: id.into(), lossless: true, ..AttachStart::default() }
}

/// A lossless client receives every byte: the process waits for its reader as on a pipe, from the first byte to the
/// last. The exit is not reported before all output is delivered. This holds with a small log, and without a log.
#[test]
fn lossless_client_gets_every_byte() {
    let bytes = noise(40 << 20);
    let (daemon, rootfs) = with_bytes(&bytes);
    let cat = |id: &str| program("/bin/cat", &["/bytes"]).id(id).rootfs(&rootfs.reference());
    for (id, suppressed) in [("kept", false), ("quiet", true)] {
        let request = cat(id).action(|run| run.suppress_log_output = suppressed);
        daemon.api.started(RunRequest { await_reader: true, ..request });
        let mut client = Attached::start(&daemon.api, reader(id)).unwrap();
        // The pause lasts as long as another container needs to write the same output without a reader.
        assert_eq!(exit(&daemon.api.run_to_end(cat(&format!("{id}-2")))), Ok(0));
        assert_eq!(daemon.api.get(id).unwrap().state(), State::Running, "the process waits for its reader");
        let slow = attached_to(&daemon, id);
        while client.read_message().unwrap() {}
        assert!(client.stdout == bytes && client.missed == 0, "{} bytes", client.stdout.len());
        drop(slow);
        assert_eq!(exit(&daemon.api.wait(id).unwrap()), Ok(0));
    }
    // The same holds if the output is too short to make the process wait.
    daemon.api.started(RunRequest { await_reader: true, ..sh("echo out; echo err >&2; exit 3").id("short") });
    let client = Attached::start(&daemon.api, reader("short")).unwrap().end().unwrap();
    assert_eq!((&*client.stdout, &*client.stderr), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!(exit(&daemon.api.wait("short").unwrap()), Ok(3));
}

fn attached_to(daemon: &Daemon, id: &str) -> Attached {
    Attached::start(&daemon.api, AttachStart { id: id.into(), ..AttachStart::default() }).expect("attach")
}

/// A process that waits for its reader still gets its signals. It continues when the reader has disconnected.
#[test]
fn blocked_reader_blocks_only_its_process() {
    let (daemon, rootfs) = with_bytes(&noise(8 << 20));
    let held = |id: &str| {
        let request = program("/bin/cat", &["/bytes"]).id(id).rootfs(&rootfs.reference());
        daemon.api.started(RunRequest { await_reader: true, ..request });
        // Unread data of several streams fills the window of their connection, so each stream has its own connection.
        Attached::start(&Api::connect(&daemon.socket()).unwrap(), reader(id)).unwrap()
    };
    let (stopped, killed, gone, deleted) = (held("stop"), held("kill"), held("gone"), held("delete"));
    assert_eq!(
        exit(&daemon.api.run_to_end(program("/bin/cat", &["/bytes"]).id("control").rootfs(&rootfs.reference()))),
        Ok(0)
    );
    for id in ["stop", "kill", "gone", "delete"] {
        assert_eq!(daemon.api.get(id).unwrap().state(), State::Running, "{id}");
    }
    drop(gone);
    assert_eq!(exit(&daemon.api.wait("gone").unwrap()), Ok(0), "the process continues with its log alone");
    daemon.api.stop("stop", Some(1)).unwrap();
    assert_eq!(exit(&daemon.api.wait("stop").unwrap()), Err(9), "PID 1 is the only process and has no handler");
    assert!(stopped.end().is_err(), "the stream ends with an error, because output is missing");
    daemon.api.signal("kill", 9).unwrap();
    // The reader has no time limit until the container is stopped.
    let killed = killed.end().unwrap();
    assert!(killed.stdout == noise(8 << 20)[..killed.stdout.len()]);
    assert_eq!(exit(&daemon.api.wait("kill").unwrap()), Err(9));
    daemon.api.delete("delete", true).unwrap();
    drop(deleted);
}

/// If executord is killed while output is in transit, a client continues at its byte position, and the process waits
/// for the client.
#[test]
fn reader_resumes_after_executord_is_killed() {
    let mut node = Supervised::start();
    let script = "i=0; while [ $i -lt 400000 ]; do echo line-$i; i=$((i+1)); done; exit 4";
    node.api.started(RunRequest { await_reader: true, ..sh(script).id("c") });
    let start = AttachStart { resumable: true, ..reader("c") };
    let mut client = Attached::start(&node.api, start.clone()).unwrap();
    client.until("line-9999\n");
    node.kill(Process::Executord);
    while client.read_message().is_ok_and(|more| more) {}
    let (mut seen, place) = (client.stdout, client.place);
    assert_eq!(seen.len() as u64, place);
    node.revive().unwrap();
    wait::until("the next executord knows the shim", || node.api.get("c").ok().filter(|c| c.started_at.is_some()));
    let again = wait::until("the client is attached again", || {
        Attached::start(&node.api, AttachStart { resume_at: Some(place), ..start.clone() }).ok()
    });
    let again = again.end().unwrap();
    assert_eq!(again.missed, 0);
    seen.extend(again.stdout);
    let expected: String = (0..400_000).map(|n| format!("line-{n}\n")).collect();
    assert!(seen == expected.as_bytes(), "{} bytes of {}", seen.len(), expected.len());
    assert_eq!(exit(&node.api.wait("c").unwrap()), Ok(4));
    let beyond = Attached::start(&node.api, AttachStart { resume_at: Some(1 << 40), ..start });
    assert_eq!(beyond.err().unwrap().code(), Code::FailedPrecondition, "the position is beyond the end");
}

/// The terminal belongs to the shim, and survives a kill of executord.
#[test]
fn terminal_outlives_executord() {
    let mut node = Supervised::start();
    let script = "trap 'echo hup' HUP; while read line; do echo got-$line; done";
    node.api.started(interactive(sh(script).id("c"), true));
    let start = |node: &Supervised| {
        let start = AttachStart { id: "c".into(), input: true, take_over: true, ..AttachStart::default() };
        Attached::start(&node.api, start).unwrap()
    };
    let mut client = start(&node);
    client.send_input(b"1\n");
    client.until("got-1");
    node.kill(Process::Executord);
    assert!(client.end().is_err());
    node.revive().unwrap();
    wait::until("the next executord knows the shim", || node.api.get("c").ok().filter(|c| c.started_at.is_some()));
    let mut client = start(&node);
    client.send_input(b"2\n");
    assert!(!client.until("got-2").contains("hup"));
}
