//! JSON documents, with the names of the API. Every key is always present.
//!
//! Times are RFC 3339 in UTC with nanoseconds, durations are seconds in keys that end in `_seconds`, and sizes are
//! bytes. Enums are lower-case words, permission bits are an octal string, and unknown values are null. The
//! `exit_status` of a result is the exit status of `agent-cli wait`. `docs/agent-cli.schema.json` describes every
//! document. The test `schema` compares the keys of the schema with the keys of the API.

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

use executor_cli_kit::failure::Failure;
use executor_cli_kit::view::json::time;
use executor_client::v1;
use serde::Serialize;

use super::human::{self, event_kind};

pub(crate) use bindings::{CheckedBindings, ShownBindings};
pub(crate) use cell::{Drain, Health, Quarantine, Released, Reservation};
pub(crate) use container::{Container, Rotated};
pub(crate) use ending::Ending;
pub(crate) use info::Info;
pub(crate) use networks::{Egress, NetworkChecks, NodeNetwork, TriedNetwork};
pub(crate) use outputs::{Archived, Copied, Cp};
pub(crate) use pods::PodDocument;
pub(crate) use secrets::Secrets;
pub(crate) use usage::ContainerStats;

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
    /// True if earlier events are missing: no longer retained, or lost when executord was killed.
    gap: bool,
}

/// Result of a command for one of its containers: `rm`, `kill`, `start` and others.
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
    pub(crate) started: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reopened: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl Done {
    /// Creates the result for a container, without further details.
    pub(crate) fn new(id: String, error: Option<String>) -> Self {
        Self { id, deleted: None, signal: None, updated: None, paused: None, started: None, reopened: None, error }
    }
}

/// Result for one of several containers.
#[derive(Serialize)]
pub(crate) struct ContainerOutcome {
    id: String,
    container: Option<Container>,
    error: Option<String>,
}

impl ContainerOutcome {
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

fn seconds(duration: Option<prost_types::Duration>) -> Option<f64> {
    duration.and_then(|duration| Duration::try_from(duration).ok()).map(|duration| duration.as_secs_f64())
}

fn sorted<V: Clone>(map: &HashMap<String, V>) -> BTreeMap<String, V> {
    map.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
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
    use executor_cli_kit::view::json::to_document;
    use serde_json::{Value, json};

    pub(super) fn value(value: &impl Serialize) -> Value {
        serde_json::from_str(&to_document(value)).unwrap()
    }

    #[test]
    fn event_gap_is_json_object() {
        let gap = value(&Event::from(&v1::WatchEventsResponse { event: None, gap: true }));
        assert_eq!((&gap["kind"], &gap["gap"], &gap["cursor"]), (&json!("gap"), &json!(true), &Value::Null));
    }
}
