//! When a launcher that executord has started has nothing left to do.

use std::time::{Duration, Instant};

/// How long nothing must be there.
const PATIENCE: Duration = Duration::from_secs(2);
/// And how long a daemon has to connect at first.
const FIRST_DAEMON: Duration = Duration::from_secs(30);

/// Time since which there is no daemon, no container and no other work.
pub(super) struct Idle {
    until: Option<Instant>,
}

impl Idle {
    pub(super) fn begun(now: Instant) -> Self {
        Self { until: Some(now + FIRST_DAEMON) }
    }

    /// Takes whether nothing is there now. Returns when the launcher ends if that stays so.
    pub(super) fn look(&mut self, nothing: bool, now: Instant) -> Option<Instant> {
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
        assert_eq!(idle.look(true, at(1)), Some(start + FIRST_DAEMON));
        assert_eq!(idle.look(false, at(2)), None);
        assert_eq!(idle.look(true, at(1000)), Some(at(1000) + PATIENCE));
        assert_eq!(idle.look(true, at(1001)), Some(at(1000) + PATIENCE));
        assert_eq!(idle.look(false, at(1002)), None);
        assert_eq!(idle.look(true, at(1003)), Some(at(1003) + PATIENCE));
    }
}
