//! Limits the connection rate of each owner. If an owner exceeds its rate, its connections are refused immediately, so
//! that the shared queue stays short.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::slots::Owner;

/// Number of remembered owners at which owners with a full allowance are removed.
const OWNERS_MAX: usize = 4096;

/// Maximum connection rate of one owner.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Number of connections that are accepted without delay after a pause.
    pub burst: u32,
    /// Interval at which further connections are accepted.
    pub interval: Duration,
}

/// Limiter of connection rates, with the used allowance of each owner.
#[derive(Debug)]
pub struct Rates {
    rate: Rate,
    /// Time at which an owner's allowance is full again.
    whole_at: HashMap<u64, Instant>,
}

impl Rates {
    pub fn new(rate: Rate) -> Self {
        Self { rate, whole_at: HashMap::new() }
    }

    /// Admits a connection of this owner now; returns `false` if the connection exceeds the rate.
    pub fn admit(&mut self, owner: Owner, now: Instant) -> bool {
        let Rate { burst, interval } = self.rate;
        let whole_at = self.whole_at.get(&owner.number()).copied().unwrap_or(now).max(now);
        if whole_at.duration_since(now) > interval * burst.saturating_sub(1) {
            return false;
        }
        if self.whole_at.len() >= OWNERS_MAX {
            self.whole_at.retain(|_, whole_at| *whole_at > now);
        }
        self.whole_at.insert(owner.number(), whole_at + interval);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { burst: 3, interval: Duration::from_millis(10) };

    #[test]
    fn owner_beyond_rate_is_refused_alone() {
        let (mut rates, begun) = (Rates::new(RATE), Instant::now());
        let at = |milliseconds| begun + Duration::from_millis(milliseconds);
        let (one, other) = (Owner::Container(1), Owner::User(1));
        let mut admitted = |owner, when| rates.admit(owner, at(when));
        assert_eq!([0, 0, 0, 0, 9].map(|when| admitted(one, when)), [true, true, true, false, false]);
        assert!(admitted(other, 9));
        assert_eq!([10, 10, 20, 25].map(|when| admitted(one, when)), [true, false, true, false]);
        assert_eq!(
            [1000, 1000, 1000, 1000].map(|when| admitted(one, when)),
            [true, true, true, false],
            "after a pause"
        );
    }

    #[test]
    fn no_more_owners_are_remembered_than_needed() {
        let (mut rates, begun) = (Rates::new(RATE), Instant::now());
        for owner in 0..2 * OWNERS_MAX as u32 {
            assert!(rates.admit(Owner::User(owner), begun + Duration::from_millis(owner.into())));
        }
        assert!(rates.whole_at.len() <= OWNERS_MAX, "{}", rates.whole_at.len());
    }
}
