//! Determines the exit time of a launcher that executord started: shortly after the last daemon has disconnected, if no
//! container runs and no other work is pending.

use std::time::{Duration, Instant};

/// Idle time after which the launcher exits. In the meantime another daemon may connect.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for the first daemon to connect after the launcher's start.
const FIRST_DAEMON_TIMEOUT: Duration = Duration::from_secs(30);

/// Determines when an idle launcher exits.
pub(super) struct Idle {
    /// Exit time; `None` while there is work.
    until: Option<Instant>,
}

impl Idle {
    pub(super) fn new(now: Instant) -> Self {
        Self { until: Some(now + FIRST_DAEMON_TIMEOUT) }
    }

    /// Records whether the launcher is idle. Returns the exit time if `is_idle` is true.
    pub(super) fn check(&mut self, is_idle: bool, now: Instant) -> Option<Instant> {
        self.until = is_idle.then(|| self.until.unwrap_or(now + IDLE_TIMEOUT));
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the last daemon disconnects after a long silence, the launcher still waits the full time for the next daemon.
    #[test]
    fn idle_time_starts_after_last_activity() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut idle = Idle::new(start);
        assert_eq!(idle.check(true, at(1)), Some(start + FIRST_DAEMON_TIMEOUT));
        assert_eq!(idle.check(false, at(2)), None);
        assert_eq!(idle.check(true, at(1000)), Some(at(1000) + IDLE_TIMEOUT));
        assert_eq!(idle.check(true, at(1001)), Some(at(1000) + IDLE_TIMEOUT));
        assert_eq!(idle.check(false, at(1002)), None);
        assert_eq!(idle.check(true, at(1003)), Some(at(1003) + IDLE_TIMEOUT));
    }
}
