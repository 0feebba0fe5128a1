//! Decides when a launcher that executord started exits: a moment after its last daemon, its last container and all
//! other work are gone.

use std::time::{Duration, Instant};

/// Time until the launcher's exit, in which another daemon may connect.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time after the launcher's start for the first daemon to connect.
const FIRST_DAEMON: Duration = Duration::from_secs(30);

/// Idle timeout of the launcher.
pub(super) struct Idle {
    /// Exit time; `None` while there is work.
    until: Option<Instant>,
}

impl Idle {
    pub(super) fn begun(now: Instant) -> Self {
        Self { until: Some(now + FIRST_DAEMON) }
    }

    /// Records whether the launcher is idle. Returns the exit time if it stays idle.
    pub(super) fn check(&mut self, nothing: bool, now: Instant) -> Option<Instant> {
        self.until = nothing.then(|| self.until.unwrap_or(now + PATIENCE));
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However long the last daemon was silent, the next one has the full time.
    #[test]
    fn the_time_begins_when_the_last_thing_is_gone() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut idle = Idle::begun(start);
        assert_eq!(idle.check(true, at(1)), Some(start + FIRST_DAEMON));
        assert_eq!(idle.check(false, at(2)), None);
        assert_eq!(idle.check(true, at(1000)), Some(at(1000) + PATIENCE));
        assert_eq!(idle.check(true, at(1001)), Some(at(1000) + PATIENCE));
        assert_eq!(idle.check(false, at(1002)), None);
        assert_eq!(idle.check(true, at(1003)), Some(at(1003) + PATIENCE));
    }
}
