//! Pauses between attempts: doubled after each, up to a longest one.

use std::time::Duration;

/// Pauses of one series of attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Makes a series from its first and its longest pause.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, next: first }
    }

    /// Returns the pause before the next attempt.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause
    }

    /// Begins again with the first pause, after an attempt that succeeded.
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
