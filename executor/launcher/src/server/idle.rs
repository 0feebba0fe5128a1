//! Decides when a launcher that executord started ends: a moment after its last daemon, its last container and all other work
//! are gone.

use std::time::{Duration, Instant};

/// Time from then to the launcher's end, in which the next daemon may connect.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time from the launcher's start in which the first daemon may connect.
const FIRST_DAEMON: Duration = Duration::from_secs(30);

/// The launcher's end, as long as nothing comes.
pub(super) struct Idle {
    /// Time of the end; `None` while there is something to do.
    until: Option<Instant>,
}

impl Idle {
    pub(super) fn begun(now: Instant) -> Self {
        Self { until: Some(now + FIRST_DAEMON) }
    }

    /// Takes whether there is nothing to do now. Returns the time at which the launcher ends if that stays so.
    pub(super) fn check(&mut self, nothing: bool, now: Instant) -> Option<Instant> {
        self.until = nothing.then(|| self.until.unwrap_or(now + PATIENCE));
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However long the last daemon was quiet, the next one has the whole time.
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
