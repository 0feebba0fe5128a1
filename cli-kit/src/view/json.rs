//! JSON documents. Every key is always present.
//!
//! Times are RFC 3339 in UTC with nanoseconds, sizes are bytes, enums are lower-case words, and unknown values are
//! null. `docs/agent-cli.schema.json` describes every document; a test of agent-cli generates it, with the feature
//! `schema` of this crate.

mod refusal;

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use executor_client::v1::{self, LogStream};
use prost_types::Timestamp;
use serde::Serialize;

use super::quantity::system_time;

pub use refusal::Refusal;

/// An object of `logs --json`.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LogEntry {
    time: Option<String>,
    stream: &'static str,
    log_source: String,
    /// Encoding: `utf-8` or `base64`.
    encoding: &'static str,
    data: String,
    /// Offset of this entry in the process's output, in bytes.
    offset: u64,
    /// Number of the entry, from 1; 0 for a gap.
    sequence: u64,
    /// Missing output at this position; null for an entry.
    gap: Option<LogGap>,
    /// Tags of the log; only in the first object.
    log_tags: BTreeMap<String, String>,
}

/// Output that is missing in the log.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct LogGap {
    dropped_bytes: u64,
    dropped_entries: u64,
    log_bytes_max: u64,
    /// True if the output exceeded the container's log limits.
    above_limits: bool,
}

/// Formats a document, indented for people.
pub fn to_document(value: &impl Serialize) -> String {
    // Cannot fail: documents have only string keys and finite numbers.
    serde_json::to_string_pretty(value).map(|text| text + "\n").unwrap_or_default()
}

/// Formats an object on one line.
pub fn to_line(value: &impl Serialize) -> String {
    serde_json::to_string(value).map(|text| text + "\n").unwrap_or_default()
}

/// Formats a time with nanoseconds.
pub fn time(timestamp: Option<&Timestamp>) -> Option<String> {
    timestamp.and_then(system_time).map(|time| humantime::format_rfc3339_nanos(time).to_string())
}

/// Returns the encoding and the encoded bytes: UTF-8 text unchanged, other bytes in base64.
pub fn encoded(bytes: Vec<u8>) -> (&'static str, String) {
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
        let log_tags = entry.log_tags.into_iter().collect();
        Self { time, stream, log_source: entry.log_source, encoding, data, offset, sequence, gap, log_tags }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn value(value: &impl Serialize) -> Value {
        serde_json::from_str(&to_document(value)).unwrap()
    }

    #[test]
    fn log_entries_are_text_or_base64() {
        let entry = |data: &[u8]| v1::StreamLogsResponse {
            stream: LogStream::Stderr.into(),
            data: data.to_vec(),
            ..v1::StreamLogsResponse::default()
        };
        let text = to_line(&LogEntry::from(entry(b"a\nb")));
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
}
