//! Limits the rate of a container's restarts with a token bucket, so that a loop of short runs neither fills the node's
//! event log nor occupies a CPU. The delays in the request's restart policy may be longer; the token bucket never
//! shortens them.

use std::time::Duration;

/// Number of restarts that are not delayed.
pub(crate) const BURST: u32 = 10;
/// Refill period: after this time, one more restart is not delayed.
pub(crate) const PERIOD: Duration = Duration::from_secs(5);

/// Token bucket of one container's restarts, stored as the uptime at which the bucket is full again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RestartPacer {
    full_at: Duration,
}

impl RestartPacer {
    /// Takes a token for a restart and returns the delay until the token is available.
    pub(super) fn take(&mut self, uptime: Duration) -> Duration {
        let full_at = self.full_at.max(uptime);
        self.full_at = full_at + PERIOD;
        full_at.saturating_sub(uptime + PERIOD * (BURST - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn take_after_burst_delays() {
        let mut pace = RestartPacer::default();
        for _ in 0..BURST {
            assert_eq!(pace.take(at(100)), Duration::ZERO);
        }
        assert_eq!(pace.take(at(100)), PERIOD);
        // The delayed restart used the token of that period.
        assert_eq!(pace.take(at(105)), PERIOD);
        assert_eq!(pace.take(at(112)), Duration::from_secs(3));
        assert_eq!(pace.take(at(121)), Duration::ZERO);
    }

    #[test]
    fn take_in_a_loop_holds_bound() {
        for run in [1, 7, 900, 4_999, 5_001, 60_000] {
            let (mut pace, mut now, mut count) = (RestartPacer::default(), at(1), 0);
            let end = at(1 + 3_600);
            while now < end {
                now += Duration::from_millis(run);
                now += pace.take(now);
                count += 1;
            }
            assert!(count <= u64::from(BURST) + 3_600 / PERIOD.as_secs() + 1, "{run} ms: {count}");
        }
    }
}
