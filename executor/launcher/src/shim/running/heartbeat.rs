//! The shim's side of the heartbeat, by which the launcher distinguishes a busy shim from a frozen one.
//!
//! Each turn of a loop has the operator's time limit (`launcher.watchdog_seconds`), for slow disks. Operations with
//! their own time limit get it in addition.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use executor_sys::heartbeat::Heartbeat;

/// Time limit of a turn if shims are not watched: a later launcher may watch them.
const UNWATCHED: Duration = Duration::from_secs(100 * 365 * 86_400);

pub(crate) struct HeartbeatWriter {
    heartbeat: Heartbeat,
    patience: Duration,
}

impl HeartbeatWriter {
    /// Creates the pace of a shim with this time limit per turn, if shims are watched.
    pub(crate) fn new(heartbeat: Heartbeat, patience: Option<Duration>) -> Self {
        Self { heartbeat, patience: patience.unwrap_or(UNWATCHED) }
    }

    /// Begins a turn of a loop.
    pub(crate) fn turn(&self) {
        self.start(Duration::ZERO);
    }

    /// Begins an operation that may take this much longer than a turn.
    pub(crate) fn start(&self, longer: Duration) {
        self.heartbeat.turn(self.patience + longer);
    }

    /// Begins a wait.
    pub(crate) fn rest(&self) {
        self.heartbeat.rest();
    }
}

impl AsFd for HeartbeatWriter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.heartbeat.as_fd()
    }
}
