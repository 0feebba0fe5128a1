//! Signs of a shim's own pace, so that the launcher can tell one that works from one that is frozen.
//!
//! Each turn of a loop has the time that the operator gives it (`launcher.watchdog_seconds`), for whatever a disk may
//! take. What has bounds of its own is given them beside that.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use executor_sys::pulse::Heartbeat;

/// A turn where shims are not watched: another launcher may watch them one day.
const UNWATCHED: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A shim's pace.
pub(crate) struct HeartbeatWriter {
    pulse: Heartbeat,
    patience: Duration,
}

impl HeartbeatWriter {
    /// Of a shim that has this for a turn, where shims are watched.
    pub(crate) fn new(pulse: Heartbeat, patience: Option<Duration>) -> Self {
        Self { pulse, patience: patience.unwrap_or(UNWATCHED) }
    }

    /// A turn of a loop begins.
    pub(crate) fn turn(&self) {
        self.start(Duration::ZERO);
    }

    /// Something begins that may take so much longer than a turn.
    pub(crate) fn start(&self, longer: Duration) {
        self.pulse.turn(self.patience + longer);
    }

    /// A wait begins.
    pub(crate) fn rest(&self) {
        self.pulse.rest();
    }
}

impl AsFd for HeartbeatWriter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pulse.as_fd()
    }
}
