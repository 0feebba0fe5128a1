//! Attacks that look for a connected client's secrets in executord's memory.

use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use executor_proto::v1::{self, RunRequest};
use executor_residue::Canary;
use integration::cli;
use integration::daemon::{Daemon, Setup};
use integration::images::{Endpoint as _, Holding, Image, PASSWORD, Registry, USER};
use integration::request::{RequestBuilder as _, program};
use integration::streams::{Executed, script};
use prost::Message as _;
use serde_json::json;

use crate::attack::{Outcome, Scale};
use crate::python::CCore;
use crate::search::{find_secrets, remaining_secrets};

const RUN: &str = "/executor.v1.Executor/Run";
const LIST: &str = "/executor.v1.Executor/List";

/// Builds a request with a secret for a container that exits immediately.
fn secretive(id: &str, secret: &str) -> RunRequest {
    program("/bin/true", &[]).id(id).file("a", secret.as_bytes())
}

/// Makes several Run calls on each of many connections. No part of a secret may remain in memory.
pub(crate) fn c_core(scale: Scale) -> anyhow::Result<Outcome> {
    let daemon = Daemon::start();
    let (sizes, rounds) = scale.pick(
        (&[64, 6000][..], 2),
        (&[32, 64, 200, 700, 1500, 4096, 6000, 16_384, 20_000, 65_536, 200_000, 900_000][..], 20),
    );
    let (mut faults, mut calls) = (Vec::new(), 0);
    for size in sizes {
        let mut client = CCore::connect(&daemon.socket())?;
        for round in 0..rounds {
            let secret = Canary::random(*size)?;
            let id = format!("c{size}-{round}");
            let code = client.call(RUN, &secretive(&id, secret.as_str()).encode_to_vec())?;
            ensure!(code == "OK", "Run: {code}, expected OK");
            calls += 1;
            let kept = remaining_secrets(daemon.pid(), &[("a secret", secret.as_bytes())])?;
            if !kept.is_empty() {
                faults.push(format!("{size} bytes, call {round}: {}", kept.join(", ")));
            }
        }
    }
    let reported = format!("no copy of {calls} secrets on {} connections", sizes.len());
    Ok(Outcome::new((!faults.is_empty()).then(|| faults.join("; ")), reported))
}

/// Control: the search finds the container's id, which is not secret, in executord's memory.
pub(crate) fn c_core_control(_: Scale) -> anyhow::Result<String> {
    let daemon = Daemon::start();
    let mut client = CCore::connect(&daemon.socket())?;
    let id = Canary::random(40)?;
    let code = client.call(RUN, &secretive(id.as_str(), "x").encode_to_vec())?;
    ensure!(code == "OK", "Run: {code}, expected OK");
    let held = find_secrets(daemon.pid(), &[("an id", id.as_bytes())])?;
    ensure!(!held.is_empty(), "control failed: the search does not find existing data");
    Ok("an id, which is no secret, is found".into())
}

/// Encodes these bytes as a field whose number no message uses.
fn unknown_field(bytes: &[u8]) -> Vec<u8> {
    #[derive(Clone, PartialEq, prost::Message)]
    struct Unknown {
        #[prost(bytes = "vec", tag = "19998")]
        bytes: Vec<u8>,
    }
    Unknown { bytes: bytes.to_vec() }.encode_to_vec()
}

/// Sends requests with one secret each that are refused for different reasons, on one persistent connection.
pub(crate) fn refused(scale: Scale) -> anyhow::Result<Outcome> {
    let daemon = Daemon::start();
    let mut client = CCore::connect(&daemon.socket())?;
    // The connection's first request is not evaluated.
    client.call(LIST, &[])?;
    let (mut faults, mut calls) = (Vec::new(), 0);
    for size in scale.pick(&[700][..], &[64, 700, 4096, 20_000, 65_536, 900_000]) {
        for (way, expected) in WAYS {
            let secret = Canary::random(*size)?;
            let code = way(&mut client, secret.as_str())?;
            ensure!(expected.1.contains(&&*code), "{}: {code}, expected {:?}", expected.0, expected.1);
            calls += 1;
            let kept = remaining_secrets(daemon.pid(), &[("a secret", secret.as_bytes())])?;
            if !kept.is_empty() {
                faults.push(format!("{}, {size} bytes: {}", expected.0, kept.join(", ")));
            }
        }
    }
    Ok(Outcome::new(
        (!faults.is_empty()).then(|| faults.join("; ")),
        format!("no copy of the secrets of {calls} refused requests"),
    ))
}

type Way = fn(&mut CCore, &str) -> anyhow::Result<String>;

/// Kinds of refused requests, each with a name and the expected codes.
const WAYS: &[(Way, (&str, &[&str]))] = &[
    (bad_action, ("an upload without a file", &["INVALID_ARGUMENT"])),
    (bad_field, ("a field that is wrong", &["INVALID_ARGUMENT"])),
    (too_large, ("too large a message", &["OUT_OF_RANGE", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "CANCELLED"])),
    (unknown_method, ("an unknown method", &["UNIMPLEMENTED", "PERMISSION_DENIED"])),
    (unknown_fields, ("an unknown field", &["INVALID_ARGUMENT", "OK"])),
    (not_protobuf, ("no protobuf", &["INVALID_ARGUMENT", "INTERNAL"])),
    (compressed, ("a compressed message", &["UNIMPLEMENTED", "INTERNAL", "INVALID_ARGUMENT"])),
    (metadata, ("metadata", &["OK", "UNAVAILABLE", "INTERNAL", "RESOURCE_EXHAUSTED", "UNKNOWN", "CANCELLED"])),
];

fn bad_action(client: &mut CCore, secret: &str) -> anyhow::Result<String> {
    let run = secretive("x", secret).action.and_then(|action| action.run);
    let inner = v1::Action { run, ..v1::Action::default() };
    let upload = v1::UploadAction { to: format!("http://localhost/?{secret}"), ..v1::UploadAction::default() };
    let upload = v1::Action { upload: Some(upload), ..v1::Action::default() };
    let serial = Some(v1::SerialAction { actions: vec![inner, upload], ..v1::SerialAction::default() });
    let action = Some(v1::Action { serial, ..v1::Action::default() });
    client.call(RUN, &RunRequest { action, ..RunRequest::default() }.encode_to_vec())
}

fn bad_field(client: &mut CCore, secret: &str) -> anyhow::Result<String> {
    client.call(RUN, &secretive("x", secret).rootfs("nowhere").encode_to_vec())
}

fn too_large(client: &mut CCore, secret: &str) -> anyhow::Result<String> {
    let times = (20 << 20) / secret.len();
    client.call(RUN, &secretive("x", &secret.repeat(times)).encode_to_vec())
}

fn unknown_method(client: &mut CCore, secret: &str) -> anyhow::Result<String> {
    client.call("/executor.v1.Executor/Nothing", secret.as_bytes())
}

fn unknown_fields(client: &mut CCore, secret: &str) -> anyhow::Result<String> {
    client.call(LIST, &unknown_field(secret.as_bytes()))
}

fn not_protobuf(client: &mut CCore, secret: &str) -> anyhow::Result<String> {
    client.call(LIST, secret.as_bytes())
}

fn compressed(client: &mut CCore, secret: &str) -> anyhow::Result<String> {
    client.call_with(RUN, &secretive("x", secret).rootfs("nowhere").encode_to_vec(), &json!({"gzip": true}))
}

fn metadata(client: &mut CCore, secret: &str) -> anyhow::Result<String> {
    let value = &secret[..secret.len().min(6000)];
    client.call_with(LIST, &[], &json!({"metadata": {"x-a": value}}))
}

/// Runs an image with a wrong registry password, which is refused, and pulls the image with the right password.
pub(crate) fn registry(_: Scale) -> anyhow::Result<Outcome> {
    let (image, registry) = (Image::build(), Registry::start(true));
    image.push(&registry, "team/app:1");
    let daemon = Daemon::start();
    let name = registry.name("team/app:1");
    let mut faults = Vec::new();
    for (verb, password) in [("run", format!("wrong-{PASSWORD}")), ("pull", PASSWORD.to_owned())] {
        let ran = cli::finish(with_password(&daemon, verb, &name, &password).spawn()?);
        ensure!((ran.status == 0) == (password == PASSWORD), "{ran:?}");
        let kept = remaining_secrets(daemon.pid(), &[("a password", PASSWORD.as_bytes())])?;
        if !kept.is_empty() {
            faults.push(format!("after {verb}: {}", kept.join(", ")));
        }
    }
    Ok(Outcome::new((!faults.is_empty()).then(|| faults.join("; ")), "no copy of 2 passwords"))
}

fn with_password(daemon: &Daemon, verb: &str, name: &str, password: &str) -> Command {
    let verb: &[&str] = if verb == "run" { &["run"] } else { &["image", "pull"] };
    let arguments = [verb, &["--registry-user", USER, "--registry-password", "@env:PW", name]].concat();
    let mut command = cli::command(Some(&daemon.socket()), &arguments);
    command.env("PW", password).stdin(Stdio::null());
    command
}

/// Control: the search finds the password in executord's memory while a layer is being transferred.
pub(crate) fn registry_control(_: Scale) -> anyhow::Result<String> {
    let (image, registry) = (Image::build(), Registry::start(true));
    image.push(&registry, "team/app:1");
    let (daemon, between) = (Daemon::start(), Holding::start(&registry, 700 << 10));
    let pulling = with_password(&daemon, "pull", &between.name("team/app:1"), PASSWORD).spawn()?;
    between.until_held();
    let held = find_secrets(daemon.pid(), &[("a password", PASSWORD.as_bytes())])?;
    between.release();
    cli::finish(pulling);
    ensure!(!held.is_empty(), "control failed: the search does not find existing data");
    Ok("the password is found during a pull".into())
}

/// Prints a file of the container with Exec. The client reads all of the output and stays connected.
pub(crate) fn printed(scale: Scale) -> anyhow::Result<Outcome> {
    let daemon = Daemon::start();
    let mut faults = Vec::new();
    let sizes = scale.pick(&[3000][..], &[100, 3000, 20_000, 100_000]);
    for size in sizes {
        let secret = Canary::random(*size)?;
        let id = format!("c{size}");
        daemon.api.started(program("/bin/sleep", &["100000"]).id(&id).file("a", secret.as_bytes()));
        let cat = script(&id, "cat /etc/cf-service-bindings/a");
        let process = Executed::start(&daemon.api, cat)?.end()?;
        ensure!(process.stdout == secret.as_bytes(), "the output of the process is not the secret");
        let kept = remaining_secrets(daemon.pid(), &[("what was printed", secret.as_bytes())])?;
        if !kept.is_empty() {
            faults.push(format!("{size} bytes: {}", kept.join(", ")));
        }
    }
    Ok(Outcome::new((!faults.is_empty()).then(|| faults.join("; ")), format!("no copy of {} outputs", sizes.len())))
}

/// Control: the search finds a secret in the arguments of the container's process.
pub(crate) fn printed_control(_: Scale) -> anyhow::Result<String> {
    let daemon: Daemon = Setup::default().start();
    let secret = Canary::random(3000)?;
    daemon.api.started(program("/bin/sleep", &["100000"]).id("c"));
    let reads = format!("read typed; echo read; sleep 100000; : {}", secret.as_str());
    let mut process = Executed::start(&daemon.api, script("c", &reads))?;
    let found = find_secrets(process.pid, &[("an argument", secret.as_bytes())])?;
    ensure!(!found.is_empty(), "control failed: the search does not find existing data");
    process.send(v1::exec_request::Part::Signal(9));
    process.read_message().context("cannot read the exit of a process")?;
    Ok("the search finds the argument in the process itself".into())
}
