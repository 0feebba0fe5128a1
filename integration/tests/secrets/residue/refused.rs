//! Calls that executord refused, or that were incomplete, leave no part of their secrets. As a control, the same calls
//! are sent to an executord that wipes nothing.

use executor_proto::v1;
use executor_residue::Canary;
use integration::daemon::{Daemon, Setup};
use integration::http2::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PADDED, PING, RST_STREAM, RawClient, SETTINGS, connect_as, field,
    fields, message,
};
use integration::request::{RequestBuilder as _, sh};
use integration::streams::script;
use prost::Message as _;

use crate::residue::memory::{RUN, in_executord, is_gone};

/// Name of a failing call that contains a secret, and a function that sends the call.
type Way = (&'static str, fn(&mut RawClient, &Canary));

/// Sends a Run whose action contains the secret.
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
    ("an invalid message", |raw, secret| {
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
    let request = sh("true").secret_env("A", secret.as_str()).file("f", secret.as_bytes()).user("no such user");
    let on = raw.call(&fields(RUN), &message(&request.encode_to_vec()), piece);
    raw.wait_for_answer(on);
}

/// Failed calls leave no secret, although the client keeps its connection and acknowledges nothing.
#[test]
fn after_refused_calls() {
    let daemon = Daemon::start();
    for (name, send) in WAYS {
        let (mut raw, secret) = (RawClient::connect(&daemon.socket()), Canary::random(4096).unwrap());
        send(&mut raw, &secret);
        raw.wait_until_read();
        is_gone(&daemon, &secret, name);
        raw.wait_until_read();
    }
    // These calls also end the connection.
    let (mut raw, secret) = (RawClient::connect(&daemon.socket()), Canary::random(4096).unwrap());
    raw.frame(GOAWAY, 0, 0, &[&[0; 8], secret.as_bytes()].concat());
    is_gone(&daemon, &secret, "debug data");
    let (mut raw, secret) = (RawClient::connect(&daemon.socket()), Canary::random(4096).unwrap());
    raw.frame(HEADERS, 0, 1, &field("x", secret.as_bytes()));
    raw.frame(DATA, 0, 1, secret.as_bytes());
    assert_eq!(raw.read_goaway(), 1, "a frame within a field block is a PROTOCOL_ERROR");
    is_gone(&daemon, &secret, "an unterminated header block");
    let (mut raw, secret) = (RawClient::connect(&daemon.socket()), Canary::random(4096).unwrap());
    raw.open(&[&[0xff, 0xff, 0xff, 0x7f][..], secret.as_bytes()].concat(), false);
    assert_eq!(raw.read_goaway(), 9, "an invalid field block is a COMPRESSION_ERROR");
    is_gone(&daemon, &secret, "an invalid field block");
    // As a control, a secret is found while it is received.
    let (mut raw, secret) = (RawClient::connect(&daemon.socket()), Canary::random(4096).unwrap());
    let on = raw.open(&fields(RUN), false);
    raw.frame(DATA, 0, on, &message(&[secret.as_bytes(), secret.as_bytes()].concat())[..4096]);
    raw.wait_until_read();
    assert!(in_executord(&daemon, &secret));
}

/// Input to an executed process that has exited is not left in memory.
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
        is_gone(&daemon, &secret, "input of an exited process");
    }
}

/// If executord refuses the user of a connection, no data of the connection is left.
#[test]
fn after_a_user_was_refused() {
    let daemon = Daemon::start();
    for piece in [16_384, 7] {
        let stream = connect_as(&daemon.socket(), 54_321).unwrap();
        let (mut raw, secret) = (RawClient::over(stream, 0x7fff_ffff).unwrap(), Canary::random(4096).unwrap());
        let request = sh("true").id("c").secret_env("A", secret.as_str()).file("f", secret.as_bytes());
        let on = raw.call(&fields(RUN), &message(&request.encode_to_vec()), piece);
        raw.wait_for_answer(on);
        raw.wait_until_read();
        is_gone(&daemon, &secret, "a refused user");
        raw.wait_until_read();
        let reported = daemon.api.get("c").unwrap_err();
        assert_eq!(reported.code(), tonic::Code::NotFound, "no container was created for that user");
    }
}

/// As a control, most failing calls leave the secret in memory if nothing is overwritten. Exceptions are calls whose
/// parts are too short for the search, and calls whose memory was soon reused.
#[test]
fn control_without_wipe_finds_refused_secrets() {
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
    assert!(clean.len() <= WAYS.len() / 3, "too many failing calls leave no secret: {clean:?}");
}
