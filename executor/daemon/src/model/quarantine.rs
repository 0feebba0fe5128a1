//! Quarantine of containers that exceed the time limit of a lifecycle phase.
//!
//! A container in quarantine is reported, and killed if a kill can end the phase. The container keeps its capacity and
//! does not block other work. The container leaves quarantine when the phase is over.

use std::time::Duration;

use executor_core::lifecycle::State;
use executor_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Lifecycle phase with a time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Phase from admission to the start of the process.
    Create,
    /// Phase from the end of the grace period to the exit of all processes.
    Stop,
    /// Phase in which the secrets are wiped, the outputs are captured, and the exit record is written.
    Wipe,
    /// Phase in which the node resources of the container are removed.
    Removal,
}

/// Reason and start of a container's quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    /// Phase that exceeded its limit.
    pub phase: Phase,
    /// Time at which the limit was reached.
    pub since: Timestamp,
}

/// Time limits of lifecycle phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseLimits {
    /// Limit of [`Phase::Create`].
    pub create: Duration,
    /// Limit of [`Phase::Stop`], in addition to the grace period.
    pub stop: Duration,
    /// Limit of [`Phase::Wipe`].
    pub wipe: Duration,
    /// Limit of [`Phase::Removal`].
    pub removal: Duration,
}

impl Phase {
    pub(crate) const ALL: [Self; 4] = [Self::Create, Self::Stop, Self::Wipe, Self::Removal];

    /// Returns the phase of a container in this state; `None` if it is running.
    pub fn from_state(state: State) -> Option<Self> {
        match state {
            State::Reserved | State::Initializing | State::Created => Some(Self::Create),
            State::Running => None,
            State::Stopping => Some(Self::Stop),
            State::Wiping => Some(Self::Wipe),
            State::Completed => Some(Self::Removal),
        }
    }

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
    pub fn limit(&self, phase: Phase) -> Duration {
        match phase {
            Phase::Create => self.create,
            Phase::Stop => self.stop,
            Phase::Wipe => self.wipe,
            Phase::Removal => self.removal,
        }
    }
}
