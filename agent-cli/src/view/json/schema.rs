//! The JSON schema of every document of `--json`, in `docs/agent-cli.schema.json`.
//!
//! The schema is generated from the printed types, so it always matches them: a test fails if the file differs, and
//! `UPDATE=1 cargo test -p agent-cli --bins schema` rewrites the file. A second test compares every key with the field
//! names in `executor.v1`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use executor_cli_kit::view::json::{LogEntry, Refusal, to_document};
use prost::Message as _;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::{
    CheckedBindings, Container, ContainerStats, Cp, Done, Drain, Egress, Ending, Event, Executed, Health, Info,
    NetworkChecks, NodeNetwork, PodDocument, Released, Reservation, Rotated, Secrets, ShownBindings,
};
use crate::commands::audit::view as audit;
use crate::commands::context::ShownContext;
use crate::commands::pod::ForwardedPort;
use crate::view::{disk, images};

/// Function that generates the schema of a document.
type Describe = fn(&mut SchemaGenerator) -> schemars::Schema;

/// Returns for each command a description of its documents, and the function that generates their schema.
fn documents() -> Vec<(&'static str, &'static str, Describe)> {
    vec![
        (
            "run",
            "the completed container; with --detach the running container, with --hold the created container",
            |g| g.subschema_for::<Container>(),
        ),
        ("ps", "one document", |g| g.subschema_for::<Vec<Container>>()),
        ("inspect", "one document; with several ids a list of id, container and error", |g| {
            g.subschema_for::<Container>()
        }),
        ("stats", "a line for each container and reading; with --no-stream one document, the list of them", |g| {
            g.subschema_for::<ContainerStats>()
        }),
        ("top", "a line for each container and reading", |g| g.subschema_for::<ContainerStats>()),
        ("wait", "one document", |g| g.subschema_for::<Container>()),
        ("stop", "one document", |g| g.subschema_for::<Container>()),
        ("signal", "one document", |g| g.subschema_for::<Done>()),
        ("exec", "one document; only with --detach", |g| g.subschema_for::<Executed>()),
        ("kill", "one document", |g| g.subschema_for::<Vec<Done>>()),
        ("update", "one document", |g| g.subschema_for::<Vec<Done>>()),
        ("start", "one document", |g| g.subschema_for::<Vec<Done>>()),
        ("pause", "one document", |g| g.subschema_for::<Vec<Done>>()),
        ("unpause", "one document", |g| g.subschema_for::<Vec<Done>>()),
        ("rm", "one document", |g| g.subschema_for::<Vec<Done>>()),
        ("container prune", "one document", |g| g.subschema_for::<Vec<Done>>()),
        ("logs", "a line for each entry", |g| g.subschema_for::<LogEntry>()),
        ("events", "a line for each event", |g| g.subschema_for::<Event>()),
        ("cp", "one document", |g| g.subschema_for::<Cp>()),
        ("rotate", "one document", |g| g.subschema_for::<Rotated>()),
        ("egress set", "one document", |g| g.subschema_for::<Egress>()),
        ("egress show", "one document", |g| g.subschema_for::<Egress>()),
        ("secrets", "one document; no other document holds secret values", |g| g.subschema_for::<Secrets>()),
        ("reserve", "one document", |g| g.subschema_for::<Reservation>()),
        ("release", "one document", |g| g.subschema_for::<Vec<Released>>()),
        ("drain", "a line for each change; done is true in the last line", |g| g.subschema_for::<Drain>()),
        ("health", "one document", |g| g.subschema_for::<Health>()),
        ("info", "one document", |g| g.subschema_for::<Info>()),
        ("system df", "one document", |g| g.subschema_for::<disk::DiskOverview>()),
        ("network ls", "one document", |g| g.subschema_for::<Vec<NodeNetwork>>()),
        ("network inspect", "one document; with several names a list of name, network and error", |g| {
            g.subschema_for::<NodeNetwork>()
        }),
        ("network check", "one document", |g| g.subschema_for::<NetworkChecks>()),
        ("image pull", "one document", |g| g.subschema_for::<images::Document>()),
        ("image ls", "one document", |g| g.subschema_for::<Vec<images::Document>>()),
        ("image inspect", "one document", |g| g.subschema_for::<images::Inspected>()),
        ("image rm", "one document", |g| g.subschema_for::<Vec<images::Removed>>()),
        ("image prune", "one document", |g| g.subschema_for::<images::Pruned>()),
        ("pod create", "one document", |g| g.subschema_for::<PodDocument>()),
        ("pod ls", "one document", |g| g.subschema_for::<Vec<PodDocument>>()),
        ("pod inspect", "one document", |g| g.subschema_for::<PodDocument>()),
        ("pod stop", "one document", |g| g.subschema_for::<Vec<Done>>()),
        ("pod rm", "one document", |g| g.subschema_for::<Vec<Done>>()),
        ("pod port-forward", "a line for each port", |g| g.subschema_for::<ForwardedPort>()),
        ("bindings show", "one document", |g| g.subschema_for::<ShownBindings>()),
        ("bindings check", "one document", |g| g.subschema_for::<CheckedBindings>()),
        ("context list", "one document", |g| g.subschema_for::<Vec<ShownContext>>()),
        ("context show", "one document", |g| g.subschema_for::<ShownContext>()),
        ("audit", "one document", |g| g.subschema_for::<audit::Json>()),
        ("COMMAND", "if executord refused it, and nothing else was printed", |g| g.subschema_for::<Refusal>()),
    ]
}

fn schema() -> Value {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let commands: Map<String, Value> = documents()
        .into_iter()
        .map(|(command, when, describe)| {
            let mut document = describe(&mut generator).to_value();
            document["description"] = json!(format!("agent-cli {command} --json: {when}."));
            (command.to_owned(), document)
        })
        .collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Documents of agent-cli --json",
        "description": "The schema of a command's document is the property that has the command's name, for example #/properties/inspect. Keys have the names of executor.v1; times are RFC 3339 in UTC, durations seconds, sizes bytes, enums lower-case words; unknown values are null.",
        "type": "object",
        "properties": commands,
        "$defs": generator.take_definitions(true),
    })
}

#[test]
fn json_schema_in_docs_matches_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/agent-cli.schema.json");
    let generated = to_document(&schema());
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == generated, "docs/agent-cli.schema.json differs: UPDATE=1 cargo test -p agent-cli --bins schema");
}

/// Returns the fields of each API message.
fn fields() -> BTreeMap<String, BTreeSet<String>> {
    let set = prost_types::FileDescriptorSet::decode(executor_proto::FILE_DESCRIPTOR_SET).unwrap();
    let messages = set.file.into_iter().flat_map(|file| file.message_type);
    let mut all = BTreeMap::new();
    for message in messages {
        for nested in &message.nested_type {
            let name = format!("{}.{}", message.name(), nested.name());
            all.insert(name, nested.field.iter().map(|field| field.name().to_owned()).collect());
        }
        all.insert(message.name().to_owned(), message.field.iter().map(|field| field.name().to_owned()).collect());
    }
    all
}

/// Each JSON type with its API message, and the keys that exist only in agent-cli.
const SHOWN: [(&str, &str, &[&str]); 69] = [
    ("RestartPolicy", "RestartPolicy", &[]),
    ("RestartStatus", "RestartStatus", &[]),
    ("Container", "Container", &["output_dropped_bytes"]),
    ("Spec", "ContainerSpec", &[]),
    ("Capabilities", "Capabilities", &[]),
    ("Limits", "Limits", &[]),
    ("SecretFile", "SecretFile", &[]),
    ("InstanceIdentity", "InstanceIdentity", &[]),
    ("Process", "Process", &[]),
    ("ImageInUse", "ImageInUse", &[]),
    ("Port", "PortMapping", &[]),
    ("Dns", "Dns", &[]),
    ("Status", "NetworkStatus", &[]),
    ("NodeNetwork", "NodeNetwork", &[]),
    ("NetworkContainer", "NetworkContainer", &[]),
    ("NetworkChecks", "CheckNetworkResponse", &[]),
    ("NetworkCheck", "NetworkCheck", &[]),
    ("Declared", "Outputs", &[]),
    ("Ending", "Result", &["exit_status"]),
    ("Exit", "ExitStatus", &["signal_name"]),
    ("Failure", "Failure", &[]),
    ("Timings", "Timings", &[]),
    ("Wipe", "WipeReceipt", &[]),
    ("Summary", "OutputsSummary", &[]),
    ("Info", "InfoResponse", &["socket"]),
    ("Reservation", "Reservation", &[]),
    ("Drain", "DrainResponse", &[]),
    ("Health", "Health", &[]),
    ("Quarantine", "Quarantine", &[]),
    ("Resources", "Resources", &[]),
    ("Capacity", "Capacity", &[]),
    ("LogEntry", "StreamLogsResponse", &["encoding"]),
    ("LogGap", "LogGap", &[]),
    ("Document", "Image", &[]),
    ("SecretContent", "File", &["encoding"]),
    ("Tmpfs", "Tmpfs", &[]),
    ("Volume", "VolumeMount", &[]),
    ("EmptyVolume", "EmptyVolume", &[]),
    ("NamedVolume", "NamedVolume", &[]),
    ("ImageVolume", "ImageVolume", &[]),
    ("HostVolume", "HostVolume", &[]),
    ("HostDevice", "HostDevice", &[]),
    ("DeviceMount", "DeviceMount", &[]),
    ("Ulimit", "Ulimit", &[]),
    ("PodVolumeName", "PodVolumeName", &[]),
    ("PodDocument", "Pod", &[]),
    ("SharedSpec", "PodSpec", &[]),
    ("SharedVolume", "PodVolume", &[]),
    ("Member", "PodMember", &[]),
    ("ExtraHost", "ExtraHost", &[]),
    ("EgressRule", "EgressRule", &[]),
    ("PortRange", "PortRange", &[]),
    ("LogLimits", "LogLimits", &[]),
    ("Event", "Event", &["gap"]),
    ("Executed", "ExecStarted", &["id"]),
    ("Checks", "Checks", &[]),
    ("Check", "Check", &[]),
    ("HttpCheck", "HttpCheck", &[]),
    ("TcpCheck", "TcpCheck", &[]),
    ("ExecCheck", "ExecCheck", &[]),
    ("CheckStatus", "CheckStatus", &[]),
    ("TerminationMessage", "TerminationMessage", &[]),
    ("ContainerStats", "ContainerStats", &[]),
    ("Usage", "Usage", &[]),
    ("CpuUsage", "CpuUsage", &[]),
    ("MemoryUsage", "MemoryUsage", &[]),
    ("PidsUsage", "PidsUsage", &[]),
    ("IoUsage", "IoUsage", &[]),
    ("NetworkUsage", "NetworkUsage", &[]),
];

/// Returns the keys of a definition that are neither a field of the message, nor a duration field in seconds, nor
/// listed in `own`.
fn unknown_keys<'a>(definition: &'a Value, fields: &BTreeSet<String>, own: &[&str]) -> Vec<&'a str> {
    let keys = definition["properties"].as_object().unwrap().keys();
    let is_known = |key: &&str| {
        fields.contains(*key)
            || key.strip_suffix("_seconds").is_some_and(|key| fields.contains(key))
            || own.contains(key)
    };
    keys.map(String::as_str).filter(|key| !is_known(key)).collect()
}

#[test]
fn keys_have_the_names_of_the_interface() {
    let (schema, fields) = (schema(), fields());
    for (shown, message, own) in SHOWN {
        let definition = &schema["$defs"][shown];
        assert!(definition.is_object(), "{shown}");
        assert_eq!(unknown_keys(definition, &fields[message], own), [""; 0], "{shown} shows {message}");
    }
    let renamed = json!({ "properties": { "size_bytes": {}, "path": {}, "public": {} } });
    assert_eq!(unknown_keys(&renamed, &fields["SecretFile"], &[]), ["size_bytes"], "the control");
}

/// The type of an ending has a single definition, used in events and in containers.
#[test]
fn schema_defines_shared_type_once() {
    let mut generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let ending = generator.subschema_for::<Ending>();
    assert_eq!(ending.to_value(), json!({ "$ref": "#/$defs/Ending" }));
    let names = schema()["$defs"].as_object().unwrap().keys().filter(|name| name.ends_with('2')).count();
    assert_eq!(names, 0, "two types have the same name");
}
