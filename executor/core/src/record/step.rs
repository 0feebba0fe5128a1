//! Defines the records of the steps of a container's action tree.

use serde::{Deserialize, Serialize};

use super::{Exit, WipeRecord};
use crate::time::Timestamp;

/// State of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepState {
    /// The step has not been started.
    #[default]
    Pending,
    /// The step was started and has not completed.
    Running,
    /// The step completed without an error.
    Succeeded,
    /// The step failed.
    Failed,
    /// The step was cancelled.
    Cancelled,
    /// The shim exited while the step was running.
    Lost,
}

/// A step: an action of the tree, with its state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Path of the action in the request: `action.serial.actions[0]`. The path of a run action is also the id of its
    /// process.
    pub path: String,
    /// Kind of action: `run`, `serial`, ...
    pub kind: String,
    /// Log source of the step's log lines.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub log_source: String,
    /// State of the step when the record was written.
    pub state: StepState,
    /// Process id on the host while a process runs; 0 otherwise.
    #[serde(default)]
    pub pid: i32,
    /// Exit status of a run action's process.
    #[serde(default)]
    pub exit: Option<Exit>,
    /// Reason of the failure: `Exited with status 3`, `exceeded 30s timeout`.
    #[serde(default)]
    pub error: Option<String>,
    /// Start time of the step.
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    /// End time of the step.
    #[serde(default)]
    pub finished_at: Option<Timestamp>,
    /// Receipt of the wipe of the step's secret files.
    #[serde(default)]
    pub wipe: Option<WipeRecord>,
    /// Number of bytes that a completed transfer has copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl StepRecord {
    /// Marks a running step as lost.
    pub fn lose(&mut self) {
        if self.state == StepState::Running {
            self.state = StepState::Lost;
            self.pid = 0;
        }
    }
}
