//! JSON documents, with the names of the API. Every key is always present.
//!
//! Times are RFC 3339 in UTC with nanoseconds, durations are seconds in keys that end in `_seconds`, sizes are bytes,
//! enums are lower-case words, permission bits are an octal string, and unknown values are null. `exit_status` of an
//! ending is the exit status of `agent-cli wait`. `docs/agent-cli.schema.json` describes every document; its test
//! (`schema`) compares the keys with the API's.

mod bindings;
mod cell;
mod checks;
mod container;
mod ending;
mod host_options;
mod identity;
mod info;
mod isolation;
mod networks;
mod outputs;
mod pods;
mod refusal;
mod restarts;
#[cfg(test)]
mod schema;
mod secrets;
mod sources;
mod steps;
mod surroundings;
mod usage;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use executor_client::v1::{self, LogStream};
use prost_types::Timestamp;
use serde::Serialize;

use super::human::{self, event_kind, system_time};
use crate::failure::Failure;

pub(crate) use bindings::{CheckedBindings, ShownBindings};
pub(crate) use cell::{Drain, Health, Quarantine, Released, Reservation};
pub(crate) use container::{Container, Rotated};
pub(crate) use ending::Ending;
pub(crate) use info::Info;
pub(crate) use networks::Egress;
pub(crate) use outputs::{Archived, Copied, Cp};
pub(crate) use pods::PodDocument;
pub(crate) use refusal::Refusal;
pub(crate) use secrets::Secrets;
pub(crate) use usage::ContainerStats;

/// An object of `logs --json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct LogEntry {
    time: Option<String>,
    stream: &'static str,
    log_source: String,
    /// `utf-8` or `base64`.
    encoding: &'static str,
    data: String,
    /// Offset of this entry in the process's output, in bytes.
    offset: u64,
    /// Number of the entry, from 1; 0 for a gap.
    sequence: u64,
    /// Set if output is missing here instead of an entry.
    gap: Option<LogGap>,
    /// Tags of the log; only in the first object.
    log_tags: BTreeMap<String, String>,
}

/// Output that is missing in the log.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LogGap {
    dropped_bytes: u64,
    dropped_entries: u64,
    log_bytes_max: u64,
    /// True if the output exceeded the container's log limits.
    above_limits: bool,
}

/// An object of `events --json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Event {
    cursor: Option<u64>,
    time: Option<String>,
    container_id: Option<String>,
    kind: String,
    result: Option<Ending>,
    /// Generation of the secret files; only with `files_updated`.
    files_generation: Option<u64>,
    /// Step of a tree of actions; only with `step_started` and `step_ended`.
    step: Option<steps::Step>,
    /// Number of times that the egress rules were replaced; only with `egress_updated`.
    egress_generation: Option<u64>,
    /// Number of times that limits were changed; only with `limits_updated`.
    limits_generation: Option<u64>,
    /// Restarts; only with `restarting`.
    restart: Option<restarts::RestartStatus>,
    /// Lifecycle phase that does not end in time; only with `quarantined` and `quarantine_ended`.
    quarantine_phase: Option<String>,
    /// True if earlier events are lost to this client because they are no longer retained.
    gap: bool,
}

/// Result of `rm`, `container prune` or `kill` for one container, or of `signal`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Done {
    pub(crate) id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deleted: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) signal: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) updated: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) paused: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl Done {
    /// Creates the result for a container, without further details.
    pub(crate) fn new(id: String, error: Option<String>) -> Self {
        Self { id, deleted: None, signal: None, updated: None, paused: None, error }
    }
}

/// Result for one of several containers.
#[derive(Serialize)]
pub(crate) struct Tried {
    id: String,
    container: Option<Container>,
    error: Option<String>,
}

impl Tried {
    /// Creates the result for the requested id.
    pub(crate) fn new(id: &str, done: &Result<v1::Container, Failure>) -> Self {
        let container = done.as_ref().ok();
        Self {
            id: container.map_or_else(|| id.to_owned(), |container| container.id.clone()),
            container: container.map(Container::from),
            error: done.as_ref().err().map(Failure::describe),
        }
    }
}

/// A process that `exec --detach` started.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Executed {
    /// Id of the container.
    pub(crate) id: String,
    /// Process id on the host.
    pub(crate) pid: i32,
}

/// Formats a document, indented for people.
pub fn document(value: &impl Serialize) -> String {
    // Cannot fail: the types above have only string keys and finite numbers.
    serde_json::to_string_pretty(value).map(|text| text + "\n").unwrap_or_default()
}

/// Formats an object on one line.
pub(crate) fn line(value: &impl Serialize) -> String {
    serde_json::to_string(value).map(|text| text + "\n").unwrap_or_default()
}

fn time(timestamp: Option<&Timestamp>) -> Option<String> {
    timestamp.and_then(system_time).map(|time| humantime::format_rfc3339_nanos(time).to_string())
}

/// Formats a time with nanoseconds, for a log line.
pub(crate) fn stamp(timestamp: Option<&Timestamp>) -> String {
    time(timestamp).unwrap_or_else(|| "-".into())
}

fn seconds(duration: Option<prost_types::Duration>) -> Option<f64> {
    duration.and_then(|duration| Duration::try_from(duration).ok()).map(|duration| duration.as_secs_f64())
}

fn sorted<V: Clone>(map: &HashMap<String, V>) -> BTreeMap<String, V> {
    map.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Returns the encoding and the encoded bytes: UTF-8 text unchanged, other bytes in base64.
pub(crate) fn encoded(bytes: Vec<u8>) -> (&'static str, String) {
    match String::from_utf8(bytes) {
        Ok(text) => ("utf-8", text),
        Err(binary) => ("base64", BASE64.encode(binary.as_bytes())),
    }
}

impl From<v1::StreamLogsResponse> for LogEntry {
    fn from(entry: v1::StreamLogsResponse) -> Self {
        let stream = match entry.stream() {
            LogStream::Stdout => "stdout",
            LogStream::Stderr => "stderr",
            LogStream::Executor => "executor",
            LogStream::Unspecified if entry.gap.is_some() => "gap",
            LogStream::Unspecified => "unspecified",
        };
        let gap = entry.gap.map(|gap| LogGap {
            dropped_bytes: gap.dropped_bytes,
            dropped_entries: gap.dropped_entries,
            log_bytes_max: gap.log_bytes_max,
            above_limits: gap.above_limits,
        });
        let (time, offset, sequence) = (time(entry.time.as_ref()), entry.offset, entry.sequence);
        let (encoding, data) = encoded(entry.data);
        let log_tags = sorted(&entry.log_tags);
        Self { time, stream, log_source: entry.log_source, encoding, data, offset, sequence, gap, log_tags }
    }
}

impl From<&v1::WatchEventsResponse> for Event {
    fn from(response: &v1::WatchEventsResponse) -> Self {
        let event = response.event.as_ref();
        Self {
            cursor: event.map(|event| event.cursor),
            time: time(event.and_then(|event| event.time.as_ref())),
            container_id: event.map(|event| event.container_id.clone()),
            kind: event.map_or_else(|| "gap".into(), |event| event_kind(event.kind)),
            result: event.and_then(|event| event.result.as_ref()).map(Ending::from),
            files_generation: event.map(|event| event.files_generation).filter(|generation| *generation > 0),
            step: event.and_then(|event| event.step.as_ref()).map(steps::Step::from),
            egress_generation: event.map(|event| event.egress_generation).filter(|generation| *generation > 0),
            limits_generation: event.map(|event| event.limits_generation).filter(|generation| *generation > 0),
            restart: event.and_then(|event| event.restart.as_ref()).map(restarts::RestartStatus::from),
            quarantine_phase: event.map(|event| event.quarantine_phase).filter(|phase| *phase != 0).map(human::phase),
            gap: response.gap,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    pub(super) fn value(value: &impl Serialize) -> Value {
        serde_json::from_str(&document(value)).unwrap()
    }

    #[test]
    fn log_entries_are_text_where_they_can_be() {
        let entry = |data: &[u8]| v1::StreamLogsResponse {
            stream: LogStream::Stderr.into(),
            data: data.to_vec(),
            ..v1::StreamLogsResponse::default()
        };
        let text = line(&LogEntry::from(entry(b"a\nb")));
        assert_eq!(
            text,
            "{\"time\":null,\"stream\":\"stderr\",\"log_source\":\"\",\"encoding\":\"utf-8\",\"data\":\"a\\nb\",\"offset\":0,\"sequence\":0,\"gap\":null,\"log_tags\":{}}\n"
        );
        let gap = Some(v1::LogGap { dropped_bytes: 7, dropped_entries: 2, log_bytes_max: 65536, above_limits: true });
        let gap = value(&LogEntry::from(v1::StreamLogsResponse { gap, ..v1::StreamLogsResponse::default() }));
        let expected =
            json!({ "dropped_bytes": 7, "dropped_entries": 2, "log_bytes_max": 65536, "above_limits": true });
        assert_eq!((&gap["stream"], &gap["gap"]), (&json!("gap"), &expected));
        let binary = value(&LogEntry::from(entry(b"\xff\x00")));
        assert_eq!((&binary["encoding"], &binary["data"]), (&json!("base64"), &json!("/wA=")));
    }

    #[test]
    fn a_gap_is_an_object_too() {
        let gap = value(&Event::from(&v1::WatchEventsResponse { event: None, gap: true }));
        assert_eq!((&gap["kind"], &gap["gap"], &gap["cursor"]), (&json!("gap"), &json!(true), &Value::Null));
    }
}
