//! Quarantine: what a container does has a time, and one that takes longer is told of, is killed where that can help, keeps its
//! capacity, and holds nobody up. It leaves quarantine by itself when it goes on at last.

use std::time::Duration;

use executor_core::lifecycle::State;
use executor_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Part of a container's life with a time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// From its admission to the start of its process.
    Create,
    /// From the end of its grace period to the end of its processes.
    Stop,
    /// The wipe of its secrets, the capture of its outputs, and its exit record.
    Wipe,
    /// The removal of what it held of the node.
    Removal,
}

/// Quarantine of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    /// Part of its life that does not end.
    pub phase: Phase,
    /// Time at which its limit was reached.
    pub since: Timestamp,
}

/// Time limits of the parts of a container's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseLimits {
    /// Of [`Phase::Create`].
    pub create: Duration,
    /// Of [`Phase::Stop`], beyond the grace period.
    pub stop: Duration,
    /// Of [`Phase::Wipe`].
    pub wipe: Duration,
    /// Of [`Phase::Removal`].
    pub removal: Duration,
}

impl Phase {
    /// All parts.
    pub(crate) const ALL: [Self; 4] = [Self::Create, Self::Stop, Self::Wipe, Self::Removal];

    /// Returns the part of its life that a container in this state is in; none where it runs.
    pub fn from_state(state: State) -> Option<Self> {
        match state {
            State::Reserved | State::Initializing | State::Created => Some(Self::Create),
            State::Running => None,
            State::Stopping => Some(Self::Stop),
            State::Wiping => Some(Self::Wipe),
            State::Completed => Some(Self::Removal),
        }
    }

    /// Returns what does not end, in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Stop => "stop",
            Self::Wipe => "wipe",
            Self::Removal => "removal",
        }
    }
}

impl PhaseLimits {
    /// Returns the limit of a part.
    pub fn limit(&self, phase: Phase) -> Duration {
        match phase {
            Phase::Create => self.create,
            Phase::Stop => self.stop,
            Phase::Wipe => self.wipe,
            Phase::Removal => self.removal,
        }
    }
}
