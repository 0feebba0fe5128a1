//! What is recorded of the steps of a container that runs a tree of actions.

use serde::{Deserialize, Serialize};

use super::{Exit, WipeRecord};
use crate::time::Timestamp;

/// State of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepState {
    /// Not started.
    #[default]
    Pending,
    /// Started, and not ended.
    Running,
    /// Ended without an error.
    Succeeded,
    /// Ended with an error.
    Failed,
    /// Cancelled before it ended by itself.
    Cancelled,
    /// The shim was lost while it ran.
    Lost,
}

/// A step: an action of the tree, and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Path of the action in the request: `action.serial.actions[0]`. The id of its process, if it is a run action.
    pub path: String,
    /// Kind of action: `run`, `serial`, ...
    pub kind: String,
    /// Mark of its log lines.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub log_source: String,
    /// State.
    pub state: StepState,
    /// Pid on the host while a process runs; 0 otherwise.
    #[serde(default)]
    pub pid: i32,
    /// Exit status of a process.
    #[serde(default)]
    pub exit: Option<Exit>,
    /// Why it failed: `Exited with status 3`, `exceeded 30s timeout`.
    #[serde(default)]
    pub error: Option<String>,
    /// Start.
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    /// End.
    #[serde(default)]
    pub finished_at: Option<Timestamp>,
    /// Receipt of the wipe of its secret files.
    #[serde(default)]
    pub wipe: Option<WipeRecord>,
    /// Bytes of a transfer that has succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl StepRecord {
    /// Marks a step as lost that nobody saw end.
    pub fn lose(&mut self) {
        if self.state == StepState::Running {
            self.state = StepState::Lost;
            self.pid = 0;
        }
    }
}
