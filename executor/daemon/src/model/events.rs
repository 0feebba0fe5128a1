//! Events of containers, as the event log and the ledger keep them.

use std::sync::Arc;

use executor_core::ident::ContainerId;
use executor_core::lifecycle::State;
use executor_core::record::{RestartRecord, StepRecord};
use executor_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::quarantine::Phase;
use crate::model::status::End;

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// The container reached a state.
    Reached(State),
    /// The container was deleted, its record and its logs included.
    Deleted,
    /// The container's secret files were replaced; the number is their new generation.
    FilesUpdated(u64),
    /// A step of a tree of actions started.
    StepStarted,
    /// A step of a tree of actions ended.
    StepEnded,
    /// The container's egress was replaced; the number is its new generation.
    EgressUpdated(u64),
    /// The container's limits were replaced; the number is their new generation.
    LimitsUpdated(u64),
    /// The container's processes were stopped until they go on.
    Paused,
    /// They go on.
    Resumed,
    /// The container's checks say that it can serve.
    Ready,
    /// The container's checks say that it cannot serve any more.
    NotReady,
    /// The container is being ended because of its checks.
    Unhealthy,
    /// The container's action has ended, and begins again.
    Restarting,
    /// A provider of the container's secrets does not answer.
    SecretsStale,
    /// The providers of all its secrets answer again.
    SecretsFresh,
    /// The container's certificate and key were replaced.
    IdentityReplaced,
    /// They were not replaced when they were due.
    IdentityNotReplaced,
    /// The pod takes members.
    PodReady,
    /// The pod has ended.
    PodEnded,
    /// The pod was deleted.
    PodDeleted,
    /// Capacity was reserved for a later container.
    ReservationMade,
    /// A reservation's time is over.
    ReservationExpired,
    /// A reservation was released before its time.
    ReservationReleased,
    /// The container does not go on in time.
    Quarantined(Phase),
    /// The container goes on at last.
    QuarantineEnded(Phase),
}

/// An event of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Number of the event.
    pub cursor: u64,
    /// Time at which it was logged.
    pub time: Timestamp,
    /// Id of the container.
    pub container: ContainerId,
    /// Kind of the event.
    #[serde(rename = "what")]
    pub kind: EventKind,
    /// End of the container, with `completed`.
    pub end: Option<Arc<End>>,
    /// The step that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Arc<StepRecord>>,
    /// The restarts, with `restarting`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<Arc<RestartRecord>>,
}

/// Events that the ledger has at a start.
#[derive(Debug, Default)]
pub struct KeptEvents {
    /// Events, in order.
    pub events: Vec<Event>,
    /// First cursor that was certainly never given out.
    pub next: u64,
    /// First cursor that is not reserved.
    pub reserved: u64,
}
