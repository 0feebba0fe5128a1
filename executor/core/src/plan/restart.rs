//! Restart policy of a container: when its action begins again after an end, and how long it waits before.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Pause after the second end in a row, where the request has none. The kubelet's.
pub const RESTART_DELAY_MIN_DEFAULT: Duration = Duration::from_secs(10);
/// Longest pause, where the request has none. The kubelet's.
pub const RESTART_DELAY_MAX_DEFAULT: Duration = Duration::from_secs(300);

/// Ends after which the action begins again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartMode {
    /// Failures, at most this many times; any number of times if unset.
    OnFailure(Option<u32>),
    /// Every end.
    Always,
}

/// Restart policy of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartPolicy {
    /// Ends after which the action begins again.
    pub mode: RestartMode,
    /// Pause after the second end in a row; it is doubled after each further one. The first restart is at once.
    pub delay_min: Duration,
    /// Longest pause. A run of twice this time makes the next restart the first one again.
    pub delay_max: Duration,
}

impl RestartPolicy {
    /// True when the action begins again after an end, having been restarted this many times.
    pub fn permits(&self, failed: bool, restarts: u64) -> bool {
        match self.mode {
            RestartMode::Always => true,
            RestartMode::OnFailure(most) => failed && most.is_none_or(|most| restarts < u64::from(most)),
        }
    }

    /// Returns the time of running after which earlier ends are forgotten. The kubelet's rule.
    pub fn forget_after(&self) -> Duration {
        self.delay_max * 2
    }
}
