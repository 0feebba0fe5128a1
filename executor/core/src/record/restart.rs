//! Defines the record of a container's restarts, which is part of the container's record.

use serde::{Deserialize, Serialize};

use super::Exit;
use crate::time::Timestamp;

/// Restarts of a container that has a restart policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartRecord {
    /// Number of restarts so far.
    pub count: u64,
    /// Start time of the current run, or of the last run.
    pub started_at: Option<Timestamp>,
    /// End of the run before the last restart, or before the pending restart.
    #[serde(default)]
    pub last: Option<LastEnd>,
    /// Time of the next start, while a restart is pending.
    #[serde(default)]
    pub next_at: Option<Timestamp>,
}

/// End of a run that is followed by a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastEnd {
    /// Exit status; unset if no process ran.
    pub exit: Option<Exit>,
    /// Reason, as in the log: `Exited with status 3`.
    pub reason: String,
    /// Start of the run.
    pub started_at: Option<Timestamp>,
    /// End of the run.
    pub finished_at: Timestamp,
}
