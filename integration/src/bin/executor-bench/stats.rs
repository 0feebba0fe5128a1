//! Durations of many runs, and their statistics.

use std::time::Duration;

/// Measured durations, sorted.
#[derive(Clone, Default)]
pub(crate) struct Sample(Vec<Duration>);

impl Sample {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn add(&mut self, duration: Duration) {
        let at = self.0.partition_point(|have| *have <= duration);
        self.0.insert(at, duration);
    }

    pub(crate) fn min(&self) -> Duration {
        self.0.first().copied().unwrap_or_default()
    }

    /// Returns the smallest value that at least `percent` percent of the values do not exceed (nearest rank).
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or_default()
    }

    pub(crate) fn median(&self) -> Duration {
        self.percentile(50)
    }
}

/// Shuffles the contestants' order, so that no contestant always runs after the same other contestant. Uses xorshift
/// with a fixed seed. The quality of the randomness does not matter, but runs can be repeated.
pub(crate) struct Shuffle(u64);

impl Default for Shuffle {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Shuffle {
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            let other = usize::try_from(self.0 % (last as u64 + 1)).unwrap_or(0);
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let mut sample = Sample::default();
        for value in (1..=100).rev() {
            sample.add(Duration::from_micros(value));
        }
        let micros = |percent| sample.percentile(percent).as_micros();
        assert_eq!((sample.min().as_micros(), micros(50), micros(99), micros(100)), (1, 50, 99, 100));
        let mut one = Sample::default();
        one.add(Duration::from_micros(7));
        assert_eq!(one.percentile(99).as_micros(), 7);
    }

    #[test]
    fn shuffle_preserves_and_moves_items() {
        let mut shuffle = Shuffle::default();
        let mut firsts = [0; 4];
        for _ in 0..400 {
            let mut items = [0, 1, 2, 3];
            shuffle.shuffle(&mut items);
            firsts[items[0]] += 1;
            items.sort_unstable();
            assert_eq!(items, [0, 1, 2, 3]);
        }
        assert!(firsts.iter().all(|count| *count > 50), "{firsts:?}");
    }
}
