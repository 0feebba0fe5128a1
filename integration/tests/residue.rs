//! No part of a secret is left one second after its container's end, however that ended: in executord, its launcher or
//! a shim, behind a descriptor that another process kept open, on disk, or in a log. The secrets are files, secret
//! variables, secret arguments, files before and after a rotation, and the runtime token, of 64 bytes, 4 KiB, 64 KiB,
//! and nearly the largest size that the kind allows.
//!
//! The control is the same search with binaries that wipe nothing: it finds every kind.

#![allow(clippy::unwrap_used)] // where a test cannot go on, it fails

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use executor_proto::v1::{self, Container, failure};
use executor_residue::process::Process;
use executor_residue::{Canary, Needles, Place, Report, Search};
use integration::api::{ending, exit, pid};
use integration::daemon::{Daemon, Setup, has_ended, kill};
use integration::http2::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PADDED, PING, RST_STREAM, RawClient, SETTINGS, field, fields,
    message,
};
use integration::request::{RequestBuilder, sh};
use integration::residue::{ContainerSecrets, FileHolder, wait_until_settled};
use integration::streams::script;
use integration::wait;
use prost::Message as _;

const USR1: u32 = 10;
const USR2: u32 = 12;
const HUP: u32 = 1;

/// A running container that has printed its secrets, and processes that keep its files open.
struct Running {
    batch: ContainerSecrets,
    container: Container,
    keepers: Vec<FileHolder>,
}

impl Running {
    fn start(daemon: &Daemon, id: &str) -> Self {
        Self::of(daemon, ContainerSecrets::new(id))
    }

    fn of(daemon: &Daemon, mut batch: ContainerSecrets) -> Self {
        let container = daemon.api.started(batch.request());
        batch.wait_until_up(daemon, &container);
        let keepers = vec![FileHolder::of(daemon, &container)];
        Self { batch, container, keepers }
    }

    /// Replaces all files, and opens the new ones as well.
    fn rotate(&mut self, daemon: &Daemon) {
        self.batch.rotate(daemon);
        self.keepers.push(FileHolder::of(daemon, &self.container));
        is_found(&self.batch.search_process(self.keepers[1].pid()), &["new file", "variable", "argument"]);
    }

    /// Checks that the secrets that the process wrote itself are where it wrote them.
    fn has_written(&self) {
        is_found(&self.batch.search_process(self.keepers[0].pid()), &["written"]);
    }

    /// Checks that the search finds everything where it must be.
    fn is_found(&self) {
        is_found(&self.batch.search_process(self.keepers[0].pid()), &["file", "variable", "argument"]);
        let init = self.batch.search_process(pid(&self.container) as u32);
        let found = labels(&init);
        assert!(["variable of 64", "argument of 4096"].iter().all(|label| found.contains(label)), "{init}");
    }

    fn search(&self, daemon: &Daemon) -> Report {
        let keepers: Vec<u32> = self.keepers.iter().map(FileHolder::pid).collect();
        self.batch.search(daemon, &keepers)
    }
}

fn labels(report: &Report) -> Vec<&str> {
    report.hits.iter().map(|hit| hit.label.as_str()).collect()
}

/// Checks that the report has the token and these kinds in every size.
fn is_found(report: &Report, kinds: &[&str]) {
    let found = labels(report);
    for kind in kinds {
        // A file that the process may change has a second name, and its original content is kept.
        let sizes: BTreeSet<&&str> = found.iter().filter(|label| label.starts_with(&format!("{kind} of "))).collect();
        assert_eq!(sizes.len(), 4, "{kind} is not in {found:?}");
    }
    assert!(found.contains(&"token"), "{found:?}");
}

/// Checks that nothing was found, and that everything was searched.
fn is_clean(report: &Report, when: &str) {
    assert!(!report.found(), "{when}:\n{report}");
    assert_eq!(report.unsearched, [], "{when}");
    assert!(report.processes >= 1 && report.files > 3, "{when}: {report:?}");
}

/// Ends a running container whose files were replaced, changed by its own process, or left as they were; then nothing is
/// left.
fn nothing_is_left_after(daemon: &mut Daemon, name: &str, mut end: impl FnMut(&mut Daemon, &Running)) {
    for kind in ["given", "rotated", "written"] {
        let id = format!("{name}-{kind}");
        let batch = if kind == "written" { ContainerSecrets::writing(&id) } else { ContainerSecrets::new(&id) };
        let mut running = Running::of(daemon, batch);
        running.is_found();
        match kind {
            "rotated" => running.rotate(daemon),
            "written" => running.has_written(),
            _ => {}
        }
        end(daemon, &running);
        wait_until_settled(daemon, &id);
        is_clean(&running.search(daemon), &id);
        let log = daemon.api.output(&id).text();
        assert!(log.contains("residue-up") && log.contains("[REDACTED:"), "{id}: the control of the log");
    }
}

fn wait_for(daemon: &Daemon, running: &Running) -> Container {
    daemon.api.wait(&running.batch.id).unwrap()
}

#[test]
fn after_success() {
    nothing_is_left_after(&mut Daemon::start(), "success", |daemon, running| {
        daemon.api.signal(&running.batch.id, USR1).unwrap();
        assert_eq!(exit(&wait_for(daemon, running)), Ok(0));
    });
}

#[test]
fn after_failure() {
    nothing_is_left_after(&mut Daemon::start(), "failure", |daemon, running| {
        daemon.api.signal(&running.batch.id, USR2).unwrap();
        assert_eq!(exit(&wait_for(daemon, running)), Ok(3));
    });
}

#[test]
fn after_a_program_that_cannot_be_executed() {
    let daemon = Daemon::start();
    let batch = ContainerSecrets::new("exec");
    let container = daemon.api.run_to_end(batch.asking_for("/nope"));
    assert_eq!(ending(&container).failure.as_ref().unwrap().kind(), failure::Kind::Exec);
    wait_until_settled(&daemon, "exec");
    is_clean(&batch.search(&daemon, &[]), "exec");
    // A request that is refused after its secrets have arrived.
    let refused = ContainerSecrets::new("refused");
    daemon.api.run(refused.request().user("nobodyx")).unwrap_err();
    std::thread::sleep(std::time::Duration::from_secs(1)); // the time that docs/security-claims.md names
    is_clean(&refused.search(&daemon, &[]), "refused");
}

#[test]
fn after_the_memory_limit() {
    nothing_is_left_after(&mut Daemon::start(), "oom", |daemon, running| {
        daemon.api.signal(&running.batch.id, HUP).unwrap();
        let container = wait_for(daemon, running);
        assert!(ending(&container).oom_killed, "{container:#?}");
    });
}

#[test]
fn after_a_stop() {
    nothing_is_left_after(&mut Daemon::start(), "stop", |daemon, running| {
        daemon.api.stop(&running.batch.id, Some(0)).unwrap();
        assert!(ending(&wait_for(daemon, running)).stopped);
    });
}

#[test]
fn after_a_shim_was_killed() {
    nothing_is_left_after(&mut Daemon::start(), "shim", |daemon, running| {
        kill(daemon.record(&running.batch.id).shim.pid, 9);
        let container = wait_for(daemon, running);
        let result = ending(&container);
        assert_eq!(result.failure.as_ref().unwrap().kind(), failure::Kind::SupervisorLost);
        assert_eq!(result.wipe.as_ref().unwrap().wiped_by, "launcher");
    });
}

#[test]
fn after_executord_was_killed() {
    nothing_is_left_after(&mut Daemon::start(), "daemon", |daemon, running| {
        daemon.kill();
        // The container ends while there is no daemon.
        kill(pid(&running.container), USR1 as i32);
        wait::until("the process has ended", || has_ended(pid(&running.container)).then_some(()));
        daemon.start_again();
        assert_eq!(exit(&wait_for(daemon, running)), Ok(0));
    });
}

#[test]
fn after_the_launcher_was_killed() {
    nothing_is_left_after(&mut Daemon::start(), "launcher", |daemon, running| {
        let launcher = daemon.launcher().unwrap();
        kill(launcher, 9);
        wait::until("the launcher is gone", || has_ended(launcher).then_some(()));
        daemon.api.signal(&running.batch.id, USR1).unwrap();
        assert_eq!(exit(&wait_for(daemon, running)), Ok(0));
        wait_until_settled(daemon, &running.batch.id);
        is_clean(&running.search(daemon), "without a launcher");
        // The next launcher finds nothing left to wipe.
        daemon.terminate();
        daemon.start_again();
    });
}

#[test]
fn after_all_were_killed() {
    nothing_is_left_after(&mut Daemon::start(), "all", |daemon, running| {
        let (launcher, shim) = (daemon.launcher().unwrap(), daemon.record(&running.batch.id).shim.pid);
        daemon.kill();
        for pid in [launcher, shim] {
            kill(pid, 9);
            wait::until("the killed process is gone", || has_ended(pid).then_some(()));
        }
        daemon.start_again();
        let container = wait_for(daemon, running);
        assert_eq!(ending(&container).failure.as_ref().unwrap().kind(), failure::Kind::SupervisorLost);
    });
}

/// The search finds every kind of secret behind the kept descriptors, and the daemon's memory full of earlier data,
/// with an allocator that overwrites nothing and a wipe that does nothing. This is the control.
#[test]
fn without_the_wipe_residue_is_found() {
    let daemon = Setup::default().control().start();
    assert!(daemon.api.info().version.contains("RESIDUE CONTROL"), "{:?}", daemon.api.info());
    let mut running = Running::start(&daemon, "control");
    running.is_found();
    running.rotate(&daemon);
    daemon.api.signal("control", USR1).unwrap();
    wait_until_settled(&daemon, "control");
    let report = running.search(&daemon);
    let found = |place: fn(&Place) -> bool| -> Vec<&str> {
        report.hits.iter().filter(|hit| place(&hit.place)).map(|hit| hit.label.as_str()).collect()
    };
    let kept = found(|place| matches!(place, Place::Descriptor { name, .. } if name == "sleep"));
    for kind in ["file", "new file", "variable", "argument"] {
        for size in [64, 4096, 65_536] {
            assert!(kept.contains(&&*format!("{kind} of {size}")), "{kind} of {size} is not in {kept:?}");
        }
    }
    assert!(kept.contains(&"token"), "{kept:?}");
    let writing = Running::of(&daemon, ContainerSecrets::writing("control-written"));
    writing.has_written();
    daemon.api.signal("control-written", USR1).unwrap();
    wait_until_settled(&daemon, "control-written");
    is_found(&writing.search(&daemon), &["written"]);
    // Memory that is still unchanged depends on later allocations.
    let memory = found(|place| matches!(place, Place::Memory { name, .. } if name == "executord"));
    assert!(memory.len() >= 3, "{memory:?}");
    // Outside of the control: files hold no secret, since the log is masked as usual.
    assert!(found(|place| matches!(place, Place::File(_))).is_empty(), "{report}");
}

const RUN: &str = "/executor.v1.Executor/Run";

/// A client in another language that makes calls over one connection, which it keeps.
struct Caller {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Caller {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, answers }
    }

    fn call(&mut self, method: &str, request: &impl prost::Message) -> String {
        let line = format!("{method} {}\n", BASE64_STANDARD.encode(request.encode_to_vec()));
        self.child.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns whether executord's memory holds any part of a secret.
fn in_executord(daemon: &Daemon, secret: &Canary) -> bool {
    let mut needles = Needles::new().unwrap();
    needles.add("secret", secret.as_bytes());
    let mut search = Search::new(&needles);
    search.process(&Process::of(daemon.pid() as u32).unwrap());
    let report = search.report();
    assert!(report.processes == 1 && report.unsearched.is_empty(), "{report:?}");
    report.found()
}

/// Waits one second, the time that docs/security-claims.md names, and checks that nothing is left.
fn is_gone(daemon: &Daemon, secret: &Canary, when: &str) {
    let begun = std::time::Instant::now();
    while in_executord(daemon, secret) {
        assert!(begun.elapsed() < std::time::Duration::from_secs(1), "{when}");
    }
}

fn env(name: &str) -> PathBuf {
    std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set: run `cargo xtask test`")).into()
}

/// executord forgets the secrets of clients on gRPC's C core (Python, C++, Ruby) and on Node's library while they keep
/// their connection: the first run of a connection and the sixtieth, small and large.
#[test]
fn while_clients_of_other_languages_keep_their_connections() {
    let daemon = Daemon::start();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let socket = daemon.socket();
    type Program<'a> = (&'a str, Box<dyn Fn() -> Command + 'a>);
    let callers: [Program<'_>; 2] = [
        (
            "python",
            Box::new(|| {
                let mut command = Command::new(env("EXECUTOR_PYTHON"));
                command.arg(here.join("python/calls.py")).arg(&socket);
                command
            }),
        ),
        (
            "node",
            Box::new(|| {
                let mut command = Command::new("node");
                command
                    .arg(here.join("clients/grpc.js"))
                    .arg(env("EXECUTOR_CLIENTS").join("node_modules"))
                    .arg(&socket);
                command
            }),
        ),
    ];
    for (language, start) in callers {
        // The first call of a connection, in each of these sizes.
        let mut caller = None;
        for size in [32, 64, 256, 1024, 4096, 8000, 16_384, 30_000, 65_536, 120_000, 300_000, 600_000, 900_000] {
            let mut fresh = Caller::start(&mut start());
            run_with(&daemon, &mut fresh, &format!("{language}-{size}"), size);
            caller = Some(fresh);
        }
        let mut caller = caller.unwrap();
        for number in 0..60 {
            let size = [64, 3000, 70_000][number % 3];
            run_with(&daemon, &mut caller, &format!("{language}-again-{number}"), size);
        }
    }
}

fn run_with(daemon: &Daemon, caller: &mut Caller, id: &str, size: usize) {
    let (secret, value) = (Canary::random(size).unwrap(), Canary::random(64).unwrap());
    let request = sh("exit 0").id(id).file("/etc/x/f", secret.as_bytes()).secret_env("A", value.as_str());
    assert_eq!(caller.call(RUN, &request), "OK", "{id}");
    for secret in [&secret, &value] {
        is_gone(daemon, secret, id);
    }
    daemon.api.wait(id).unwrap();
    daemon.api.delete(id, false).unwrap();
}

/// A way to send a secret in a call that fails.
type Way = (&'static str, fn(&mut RawClient, &Canary));

/// Sends a run of this action, with the secret in place of the action's own.
fn action(raw: &mut RawClient, wrap: impl Fn(v1::Action) -> v1::Action, secret: &Canary) {
    let inner = sh("true").secret_env("A", secret.as_str()).file("f", secret.as_bytes());
    let request = v1::RunRequest { action: Some(wrap(inner.action.unwrap())), ..Default::default() };
    let on = raw.call(&fields(RUN), &message(&request.encode_to_vec()), 16_384);
    raw.wait_for_answer(on);
}

fn boxed(action: v1::Action) -> Option<Box<v1::Action>> {
    Some(Box::new(action))
}

const WAYS: [Way; 27] = [
    ("parallel", |raw, secret| {
        let wrap = |action| v1::Action {
            parallel: Some(v1::ParallelAction { actions: vec![action], ..Default::default() }),
            ..Default::default()
        };
        action(raw, wrap, secret);
    }),
    ("serial", |raw, secret| {
        let wrap = |action| v1::Action {
            serial: Some(v1::SerialAction { actions: vec![action], ..Default::default() }),
            ..Default::default()
        };
        action(raw, wrap, secret);
    }),
    ("timeout", |raw, secret| {
        let wrap = |action| v1::Action {
            timeout: Some(Box::new(v1::TimeoutAction { action: boxed(action), ..Default::default() })),
            ..Default::default()
        };
        action(raw, wrap, secret);
    }),
    ("try", |raw, secret| {
        let wrap = |action| v1::Action {
            r#try: Some(Box::new(v1::TryAction { action: boxed(action), ..Default::default() })),
            ..Default::default()
        };
        action(raw, wrap, secret);
    }),
    ("a download's address", |raw, secret| {
        let download = v1::DownloadAction { from: secret.as_str().into(), ..Default::default() };
        action(raw, |_| v1::Action { download: Some(download.clone()), ..Default::default() }, secret);
    }),
    ("in one frame", |raw, secret| refused_run(raw, secret, 16_384)),
    ("in many frames", |raw, secret| refused_run(raw, secret, 7)),
    ("a message over the limit", |raw, secret| {
        let on = raw.open(&fields(RUN), false);
        raw.frame(DATA, 0, on, &[0, 0x7f, 0xff, 0xff, 0xff]);
        raw.wait_for_answer(on);
        raw.frame(DATA, 0, on, secret.as_bytes());
    }),
    ("20 kB of metadata", |raw, secret| {
        let more: Vec<u8> = (0..5).flat_map(|number| field(&format!("x-{number}"), secret.as_bytes())).collect();
        let on = raw.call(&[fields("/executor.v1.Executor/Info"), more].concat(), &message(&[]), 5);
        raw.wait_for_answer(on);
    }),
    ("metadata that is to be remembered", |raw, secret| {
        let more = field("authorization", &secret.as_bytes()[..3000]);
        let on = raw.call(&[fields("/executor.v1.Executor/Info"), more].concat(), &message(&[]), 5);
        raw.wait_for_answer(on);
    }),
    ("metadata that is malformed", |raw, secret| {
        let on = raw.open(&[fields(RUN), field("Upper", secret.as_bytes())].concat(), false);
        raw.wait_for_answer(on);
    }),
    ("an authority", |raw, secret| {
        let block =
            [&[0x83, 0x86][..], &field(":path", RUN.as_bytes()), &field(":authority", secret.as_bytes())].concat();
        let on = raw.call(&block, &message(&[]), 5);
        raw.wait_for_answer(on);
    }),
    ("an unknown method", |raw, secret| {
        let on = raw.call(&fields(&format!("/{}", secret.as_str())), &message(secret.as_bytes()), 16_384);
        raw.wait_for_answer(on);
    }),
    ("an unknown encoding", |raw, secret| {
        let more = field("grpc-encoding", secret.as_bytes());
        let on = raw.call(&[fields(RUN), more].concat(), &message(secret.as_bytes()), 16_384);
        raw.wait_for_answer(on);
    }),
    ("gzip", |raw, secret| {
        let body = [&[1], &message(secret.as_bytes())[1..]].concat();
        let on = raw.call(&[fields(RUN), field("grpc-encoding", b"gzip")].concat(), &body, 16_384);
        raw.wait_for_answer(on);
    }),
    ("a flag for an encoding without one", |raw, secret| {
        let on = raw.call(&fields(RUN), &[&[1], &message(secret.as_bytes())[1..]].concat(), 16_384);
        raw.wait_for_answer(on);
    }),
    ("an unknown field", |raw, secret| {
        let unknown = v1::GetRequest { id: secret.as_str().into() }.encode_to_vec();
        let on = raw.call(&fields("/executor.v1.Executor/Info"), &message(&unknown), 16_384);
        raw.wait_for_answer(on);
    }),
    ("what is no message", |raw, secret| {
        let on = raw.call(&fields(RUN), &message(&[b"\x0a\xff\xff\x7f", secret.as_bytes()].concat()), 16_384);
        raw.wait_for_answer(on);
    }),
    ("an id", |raw, secret| {
        let request = v1::GetRequest { id: secret.as_str().into() };
        let on = raw.call(&fields("/executor.v1.Executor/Get"), &message(&request.encode_to_vec()), 16_384);
        raw.wait_for_answer(on);
    }),
    ("data after an answer", |raw, secret| {
        let on = raw.open(&fields("/no.such.Service/Method"), false);
        raw.wait_for_answer(on);
        raw.frame(DATA, 0, on, secret.as_bytes());
        raw.frame(DATA, END_STREAM, on, secret.as_bytes());
    }),
    ("a second message", |raw, secret| {
        let body = [message(&[]), message(secret.as_bytes())].concat();
        let on = raw.call(&fields("/executor.v1.Executor/Info"), &body, 16_384);
        raw.wait_for_answer(on);
    }),
    ("data after RST_STREAM", |raw, secret| {
        let on = raw.open(&fields(RUN), false);
        raw.frame(DATA, 0, on, &message(secret.as_bytes())[..3000]);
        raw.frame(RST_STREAM, 0, on, &[0, 0, 0, 8]);
        raw.frame(DATA, 0, on, secret.as_bytes());
    }),
    ("trailers", |raw, secret| {
        let on = raw.open(&fields("/executor.v1.Executor/Info"), false);
        raw.frame(DATA, 0, on, &message(&[]));
        raw.frame(HEADERS, END_HEADERS | END_STREAM, on, &field("x", secret.as_bytes()));
        raw.wait_for_answer(on);
    }),
    ("paddings", |raw, secret| {
        let padding = &secret.as_bytes()[..255];
        let on = raw.open(&fields("/executor.v1.Executor/Info"), false);
        raw.frame(DATA, PADDED, on, &[&[255][..], &message(&[]), padding].concat());
        raw.frame(HEADERS, END_HEADERS | END_STREAM | PADDED, on, &[&[255][..], padding].concat());
        raw.wait_for_answer(on);
    }),
    ("frames without a meaning", |raw, secret| {
        for kind in [0x10, 0xfa, 0xff] {
            raw.frame(kind, 0xff, 7, secret.as_bytes());
        }
    }),
    ("settings without a meaning", |raw, secret| {
        let entries: Vec<u8> = secret.as_bytes().chunks(5).flat_map(|part| [&[0xf0], part].concat()).collect();
        raw.frame(SETTINGS, 0, 0, &entries[..entries.len() / 6 * 6]);
    }),
    ("PINGs and their answers", |raw, secret| {
        for part in secret.as_bytes().chunks_exact(8).take(200) {
            raw.frame(PING, 0, 0, part);
            raw.frame(PING, 1, 0, part);
        }
    }),
];

fn refused_run(raw: &mut RawClient, secret: &Canary, piece: usize) {
    let request = sh("true").secret_env("A", secret.as_str()).file("f", secret.as_bytes()).user("nobody here");
    let on = raw.call(&fields(RUN), &message(&request.encode_to_vec()), piece);
    raw.wait_for_answer(on);
}

/// Failed calls leave nothing, although the client keeps its connection and acknowledges nothing.
#[test]
fn after_what_was_refused() {
    let daemon = Daemon::start();
    for (name, send) in WAYS {
        let (mut raw, secret) = (RawClient::connect(&daemon.socket()), Canary::random(4096).unwrap());
        send(&mut raw, &secret);
        raw.wait_until_read();
        is_gone(&daemon, &secret, name);
        raw.wait_until_read();
    }
    // Calls that end the connection as well.
    let (mut raw, secret) = (RawClient::connect(&daemon.socket()), Canary::random(4096).unwrap());
    raw.frame(GOAWAY, 0, 0, &[&[0; 8], secret.as_bytes()].concat());
    is_gone(&daemon, &secret, "debug data");
    let (mut raw, secret) = (RawClient::connect(&daemon.socket()), Canary::random(4096).unwrap());
    raw.frame(HEADERS, 0, 1, &field("x", secret.as_bytes()));
    raw.frame(DATA, 0, 1, secret.as_bytes());
    assert_eq!(raw.read_goaway(), 1, "a frame within a block of fields is a PROTOCOL_ERROR");
    is_gone(&daemon, &secret, "a block that is not ended");
    let (mut raw, secret) = (RawClient::connect(&daemon.socket()), Canary::random(4096).unwrap());
    raw.open(&[&[0xff, 0xff, 0xff, 0x7f][..], secret.as_bytes()].concat(), false);
    assert_eq!(raw.read_goaway(), 9, "a block that is none is a COMPRESSION_ERROR");
    is_gone(&daemon, &secret, "a block that is none");
    // The control: a secret in transit is found.
    let (mut raw, secret) = (RawClient::connect(&daemon.socket()), Canary::random(4096).unwrap());
    let on = raw.open(&fields(RUN), false);
    raw.frame(DATA, 0, on, &message(&[secret.as_bytes(), secret.as_bytes()].concat())[..4096]);
    raw.wait_until_read();
    assert!(in_executord(&daemon, &secret));
}

/// Input to a process of Exec that has ended leaves nothing.
#[test]
fn after_a_process_of_exec_has_ended() {
    let daemon = Daemon::start();
    daemon.api.started(sh("sleep 100000").id("c"));
    let (mut raw, secret) = (RawClient::connect(&daemon.socket()), Canary::random(4096).unwrap());
    let part = |part| message(&v1::ExecRequest { part: Some(part) }.encode_to_vec());
    let on = raw.open(&fields("/executor.v1.Executor/Exec"), false);
    raw.frame(DATA, 0, on, &part(v1::exec_request::Part::Start(script("c", "true"))));
    raw.wait_for_answer(on);
    let typed = part(v1::exec_request::Part::Stdin(secret.as_bytes().to_vec()));
    for piece in [16_384, 7] {
        typed.chunks(piece).for_each(|typed| raw.frame(DATA, 0, on, typed));
        raw.wait_until_read();
        is_gone(&daemon, &secret, "input of a process that has ended");
    }
}

/// Connects as a user whom executord does not serve, but who may open its socket.
fn connected_as(daemon: &Daemon, user: u32) -> RawClient {
    use rustix::thread::{CapabilitiesSecureBits, Uid, set_capabilities_secure_bits, set_thread_res_uid};
    let socket = daemon.socket();
    let connect = move || {
        // The thread keeps root's right to open any file.
        set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP).unwrap();
        let user = Uid::from_raw(user);
        set_thread_res_uid(user, user, user).unwrap();
        RawClient::connect(&socket)
    };
    std::thread::spawn(connect).join().unwrap()
}

/// A connected user whom executord does not serve leaves nothing.
#[test]
fn after_a_user_was_refused() {
    let daemon = Daemon::start();
    for piece in [16_384, 7] {
        let (mut raw, secret) = (connected_as(&daemon, 54_321), Canary::random(4096).unwrap());
        let request = sh("true").id("c").secret_env("A", secret.as_str()).file("f", secret.as_bytes());
        let on = raw.call(&fields(RUN), &message(&request.encode_to_vec()), piece);
        raw.wait_for_answer(on);
        raw.wait_until_read();
        is_gone(&daemon, &secret, "a user who is refused");
        raw.wait_until_read();
        let told = daemon.api.get("c").unwrap_err();
        assert_eq!(told.code(), tonic::Code::NotFound, "nothing was run for that user");
    }
}

/// Most ways to fail leave the secret where nothing is overwritten. Exceptions are ways that send parts too short for
/// the search, and those whose memory was soon reused. This is the control.
#[test]
fn without_the_wipe_what_was_refused_is_found() {
    let daemon = Setup::default().control().start();
    let mut clean = Vec::new();
    for (name, send) in WAYS {
        let (mut raw, secret) = (RawClient::connect(&daemon.socket()), Canary::random(4096).unwrap());
        send(&mut raw, &secret);
        raw.wait_until_read();
        if !in_executord(&daemon, &secret) {
            clean.push(name);
        }
    }
    assert!(clean.len() <= WAYS.len() / 3, "ways after which nothing is found: {clean:?}");
}
