//! Writes the shim's heartbeat, with which the launcher distinguishes a busy shim from a blocked shim.
//!
//! Each iteration of a loop has the operator's time limit (`launcher.watchdog_seconds`), which allows for slow disks.
//! Operations with their own time limit have that limit in addition.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use executor_sys::heartbeat::Heartbeat;

/// Time limit of an iteration if shims are not watched: 100 years. The limit is written in any case, because a later
/// launcher may watch the shims.
const UNWATCHED_TIMEOUT: Duration = Duration::from_secs(100 * 365 * 86_400);

pub(crate) struct HeartbeatWriter {
    heartbeat: Heartbeat,
    timeout: Duration,
}

impl HeartbeatWriter {
    /// Creates the writer for a shim. `timeout` is the time limit of an iteration, if shims are watched.
    pub(crate) fn new(heartbeat: Heartbeat, timeout: Option<Duration>) -> Self {
        Self { heartbeat, timeout: timeout.unwrap_or(UNWATCHED_TIMEOUT) }
    }

    /// Records the start of an iteration of a loop.
    pub(crate) fn turn(&self) {
        self.start(Duration::ZERO);
    }

    /// Records the start of an operation that may take `longer` in addition to the time limit of an iteration.
    pub(crate) fn start(&self, longer: Duration) {
        self.heartbeat.turn(self.timeout + longer);
    }

    /// Records that the shim waits for events, without a deadline.
    pub(crate) fn rest(&self) {
        self.heartbeat.rest();
    }
}

impl AsFd for HeartbeatWriter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.heartbeat.as_fd()
    }
}
