//! What is recorded of the restarts of a container.

use serde::{Deserialize, Serialize};

use super::Exit;
use crate::time::Timestamp;

/// Restarts of a container that has a restart policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartRecord {
    /// Number of restarts.
    pub count: u64,
    /// Start of the present run, or of the last one.
    pub started_at: Option<Timestamp>,
    /// End that the last restart followed, or that the next one will follow.
    #[serde(default)]
    pub last: Option<LastEnd>,
    /// Time of the next start, while it is waited for.
    #[serde(default)]
    pub next_at: Option<Timestamp>,
}

/// End of a run after which the action begins again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastEnd {
    /// Exit status; unset where no process ran.
    pub exit: Option<Exit>,
    /// Reason, as the log tells it: `Exited with status 3`.
    pub reason: String,
    /// Start of the run.
    pub started_at: Option<Timestamp>,
    /// End of the run.
    pub finished_at: Timestamp,
}
