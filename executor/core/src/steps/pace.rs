//! Pace of a container's restarts: a token bucket, so that a loop of short runs fills neither the node's event log nor a
//! processor. The pauses of the policy, which the request sets, may be longer and never shorten it.

use std::time::Duration;

use crate::time::Timestamp;

/// Number of restarts that are not delayed.
pub(crate) const BURST: u32 = 10;
/// Time after which one more restart is not delayed.
pub(crate) const PERIOD: Duration = Duration::from_secs(5);

/// Token bucket of one container's restarts, kept as the time at which it is full again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    full_at: Timestamp,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { full_at: Timestamp(0) }
    }

    /// Takes a token for a restart and returns the delay until the token is there.
    pub(super) fn take(&mut self, now: Timestamp) -> Duration {
        // The upper bound matters if the clock was set back: no restart is delayed by more than a period for it.
        let full_at = self.full_at.clamp(now, now.after(PERIOD * BURST));
        self.full_at = full_at.after(PERIOD);
        full_at.since(now.after(PERIOD * (BURST - 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    #[test]
    fn take_after_burst_delays() {
        let mut pace = Pace::new();
        for _ in 0..BURST {
            assert_eq!(pace.take(at(100)), Duration::ZERO);
        }
        assert_eq!(pace.take(at(100)), PERIOD);
        // The delayed restart has taken the token of that period.
        assert_eq!(pace.take(at(105)), PERIOD);
        assert_eq!(pace.take(at(112)), Duration::from_secs(3));
        assert_eq!(pace.take(at(121)), Duration::ZERO);
    }

    #[test]
    fn take_in_a_loop_holds_bound() {
        for run in [1, 7, 900, 4_999, 5_001, 60_000] {
            let (mut pace, mut now, mut count) = (Pace::new(), at(1), 0);
            let end = at(1 + 3_600);
            while now < end {
                now = now.after(Duration::from_millis(run));
                now = now.after(pace.take(now));
                count += 1;
            }
            assert!(count <= u64::from(BURST) + 3_600 / PERIOD.as_secs() + 1, "{run} ms: {count}");
        }
    }

    #[test]
    fn take_after_clock_jump_delays_one_period() {
        let mut pace = Pace::new();
        for _ in 0..=BURST {
            pace.take(at(100_000));
        }
        assert!(pace.take(at(10)) <= PERIOD);
        for _ in 0..20 {
            assert!(pace.take(at(10)) <= PERIOD);
        }
        assert_eq!(pace.take(at(200_000)), Duration::ZERO);
    }
}
