//! Defines the restart policy of a container: which exits restart its action, and after which delay.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Default delay before the second consecutive restart, as in the kubelet.
pub const RESTART_DELAY_MIN_DEFAULT: Duration = Duration::from_secs(10);
/// Default maximum delay, as in the kubelet.
pub const RESTART_DELAY_MAX_DEFAULT: Duration = Duration::from_secs(300);

/// Condition for restarting the action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartMode {
    /// Restart after failures, at most this many times; any number of times if unset.
    OnFailure(Option<u32>),
    /// Restart after success and failure.
    Always,
}

/// Restart policy of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartPolicy {
    /// Condition for restarting the action.
    pub mode: RestartMode,
    /// Delay before the second consecutive restart, doubled for each further restart. The first restart is immediate.
    pub delay_min: Duration,
    /// Maximum delay. A run that lasts twice this time resets the back-off.
    pub delay_max: Duration,
}

impl RestartPolicy {
    /// Returns true if the action is restarted after a completed run. `restarts` is the number of restarts so far.
    pub fn permits(&self, failed: bool, restarts: u64) -> bool {
        match self.mode {
            RestartMode::Always => true,
            RestartMode::OnFailure(most) => failed && most.is_none_or(|most| restarts < u64::from(most)),
        }
    }

    /// Returns the minimum duration of a run that resets the back-off, as in the kubelet.
    pub fn reset_after(&self) -> Duration {
        self.delay_max * 2
    }
}
