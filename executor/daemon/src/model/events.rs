//! Container events, as stored in the event log and the ledger.

use std::sync::Arc;

use executor_core::ident::ContainerId;
use executor_core::lifecycle::State;
use executor_core::record::{RestartRecord, StepRecord};
use executor_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::quarantine::Phase;
use crate::model::status::ContainerResult;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// The container reached a state.
    Reached(State),
    /// The container was deleted, with its record and its logs.
    Deleted,
    /// The container's secret files were replaced; holds their new generation.
    FilesUpdated(u64),
    /// A step of an action tree started.
    StepStarted,
    /// A step of an action tree completed.
    StepEnded,
    /// The container's egress rules were replaced; holds their new generation.
    EgressUpdated(u64),
    /// The container's limits were replaced; holds their new generation.
    LimitsUpdated(u64),
    /// The container's processes were paused.
    Paused,
    /// The container's processes were resumed.
    Resumed,
    /// The container is ready according to its checks.
    Ready,
    /// The container is no longer ready according to its checks.
    NotReady,
    /// The container is being stopped because its checks failed.
    Unhealthy,
    /// The container's action has exited, and is being restarted.
    Restarting,
    /// A provider of the container's secrets does not respond.
    SecretsStale,
    /// All providers of the container's secrets respond again.
    SecretsFresh,
    /// The container's certificate and key were replaced.
    IdentityReplaced,
    /// The renewal of the container's certificate and key failed.
    IdentityNotReplaced,
    /// The pod accepts members.
    PodReady,
    PodEnded,
    PodDeleted,
    /// Capacity was reserved for a later container.
    ReservationMade,
    ReservationExpired,
    /// A reservation was released before it expired.
    ReservationReleased,
    /// The container exceeded the time limit of a phase.
    Quarantined(Phase),
    /// The container left quarantine.
    QuarantineEnded(Phase),
}

/// An event of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    pub cursor: u64,
    /// Time at which the event was logged.
    pub time: Timestamp,
    pub container: ContainerId,
    #[serde(rename = "what")]
    pub kind: EventKind,
    /// Result of the container; set for `completed` only.
    pub end: Option<Arc<ContainerResult>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Arc<StepRecord>>,
    /// The restart record; set for `restarting` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<Arc<RestartRecord>>,
}

/// Events that the ledger holds at startup.
#[derive(Debug, Default)]
pub struct KeptEvents {
    /// Events in cursor order.
    pub events: Vec<Event>,
    /// Lowest cursor that no earlier daemon can have assigned.
    pub next: u64,
    /// Lowest cursor that is not reserved.
    pub reserved: u64,
}
