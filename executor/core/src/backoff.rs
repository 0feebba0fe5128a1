//! Computes the delays between attempts: each delay is twice the previous delay, up to a maximum.

use std::time::Duration;

/// Delays between the attempts of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Creates a series from its initial and its maximum delay.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// Returns the delay before the next attempt.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause
    }

    /// Resets the series to the initial delay, after a successful attempt.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(300));
        let milliseconds = |backoff: &mut Backoff| backoff.pause().as_millis();
        assert_eq!([0; 5].map(|_| milliseconds(&mut backoff)), [50, 100, 200, 300, 300]);
        backoff.reset();
        assert_eq!(milliseconds(&mut backoff), 50);
    }
}
