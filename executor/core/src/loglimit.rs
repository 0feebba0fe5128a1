//! Limits the rate at which a container's output is written to its log.
//!
//! Each limit is a token bucket that holds the amount of one second and is refilled at the rate of the limit. An entry
//! is kept if both buckets hold at least the amount of the entry. An entry larger than a bucket is kept if the bucket
//! is full; the amount in the bucket is then negative. Therefore, a line of any length can be kept. An overage begins
//! with a dropped entry, and ends once the buckets are full and no entry was dropped for one second.
//!
//! The caller provides the clock: a monotonic time with an arbitrary start.

use std::time::Duration;

use crate::logline::{Entry, Stream};
use crate::plan::LogLimits;

/// Time without a dropped entry after which an overage can end.
const CALM_PERIOD: Duration = Duration::from_secs(1);
/// Bucket units per byte or line: a rate of one per second adds one unit per nanosecond.
const PARTS: i128 = 1_000_000_000;

/// Decision about a log entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Keep the entry.
    Keep,
    /// Drop the entry without a message: the overage has already been reported, or the limit is 0.
    Drop,
    /// Drop the entry, which begins an overage, and log this message.
    DropAndReport(String),
}

/// Token bucket of the limit on bytes or on lines.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    limit: u64,
    /// Remaining units; negative after an entry that was larger than the bucket.
    left: i128,
}

impl Bucket {
    fn full(limit: u64) -> Self {
        Self { limit, left: i128::from(limit) * PARTS }
    }

    fn fill(&mut self, since: Duration) {
        let nanos = i128::try_from(since.as_nanos()).unwrap_or(i128::MAX);
        let more = i128::from(self.limit).saturating_mul(nanos);
        self.left = self.left.saturating_add(more).min(self.capacity());
    }

    fn capacity(&self) -> i128 {
        i128::from(self.limit) * PARTS
    }

    /// Returns true if the bucket is full. A bucket with the limit 0 is never full.
    fn is_full(&self) -> bool {
        self.limit > 0 && self.left == self.capacity()
    }

    fn has_room(&self, cost: u64) -> bool {
        self.limit > 0 && self.left >= (i128::from(cost) * PARTS).min(self.capacity())
    }

    fn take(&mut self, cost: u64) {
        self.left = self.left.saturating_sub(i128::from(cost) * PARTS);
    }
}

/// Limits the rate at which one log grows.
#[derive(Clone, Debug)]
pub struct LogLimiter {
    bytes: Option<Bucket>,
    lines: Option<Bucket>,
    /// Time up to which the buckets are refilled.
    filled_at: Duration,
    /// Time of the last dropped entry, during an overage.
    dropped_at: Option<Duration>,
    /// True within a line whose last entry was kept, for standard output and for standard error.
    within: [bool; 2],
}

impl LogLimiter {
    /// Creates the limiter of a log; `None` if there is no limit.
    pub fn new(limits: LogLimits) -> Option<Self> {
        (!limits.is_unlimited()).then(|| Self {
            bytes: limits.bytes_per_second.map(Bucket::full),
            lines: limits.lines_per_second.map(Bucket::full),
            filled_at: Duration::ZERO,
            dropped_at: None,
            within: [false; 2],
        })
    }

    /// Decides whether to keep the next entry, which arrived at `now`. The executor's own entries are always kept.
    pub fn decide(&mut self, now: Duration, entry: &Entry<'_>) -> Decision {
        let stream = match entry.stream {
            Stream::Stdout => 0,
            Stream::Stderr => 1,
            Stream::Executor => return Decision::Keep,
        };
        let since = now.saturating_sub(self.filled_at);
        self.filled_at = self.filled_at.max(now);
        self.bytes.iter_mut().chain(&mut self.lines).for_each(|bucket| bucket.fill(since));
        let is_calm = self.dropped_at.is_some_and(|at| now.saturating_sub(at) >= CALM_PERIOD);
        if is_calm && self.bytes.iter().chain(&self.lines).all(Bucket::is_full) {
            self.dropped_at = None;
        }
        let (bytes, lines) = (entry.output_bytes(), u64::from(!self.within[stream]));
        let short_of = |bucket: &Option<Bucket>, cost| bucket.is_some_and(|bucket| !bucket.has_room(cost));
        let exceeded = if short_of(&self.bytes, bytes) {
            self.bytes.map(|bucket| format!("{} bytes/sec", bucket.limit))
        } else if lines > 0 && short_of(&self.lines, lines) {
            self.lines.map(|bucket| format!("{} log-lines/sec", bucket.limit))
        } else {
            None
        };
        self.within[stream] = exceeded.is_none() && !entry.complete;
        // With a limit of 0 the client wants no log, so nothing is reported.
        if exceeded.is_some() && self.bytes.iter().chain(&self.lines).any(|bucket| bucket.limit == 0) {
            return Decision::Drop;
        }
        let Some(limit) = exceeded else {
            self.bytes.iter_mut().for_each(|bucket| bucket.take(bytes));
            self.lines.iter_mut().for_each(|bucket| bucket.take(lines));
            return Decision::Keep;
        };
        match self.dropped_at.replace(now) {
            Some(_) => Decision::Drop,
            None => Decision::DropAndReport(format!("app instance exceeded log rate limit ({limit})")),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::time::Timestamp;

    use super::*;

    const SECOND: u64 = 1000;

    fn limiter(bytes: Option<u64>, lines: Option<u64>) -> LogLimiter {
        LogLimiter::new(LogLimits { bytes_per_second: bytes, lines_per_second: lines }).unwrap()
    }

    /// Decides about an entry of this many bytes, including the newline if the entry is complete. Returns `.` for a
    /// kept entry, `x` for a dropped entry, `!` for a dropped and reported entry.
    fn decide(limiter: &mut LogLimiter, millis: u64, stream: Stream, bytes: usize, complete: bool) -> char {
        let content = vec![b'x'; bytes - usize::from(complete)];
        let entry = Entry { time: Timestamp(1), stream, complete, source: "", content: &content };
        match limiter.decide(Duration::from_millis(millis), &entry) {
            Decision::Keep => '.',
            Decision::Drop => 'x',
            Decision::DropAndReport(_) => '!',
        }
    }

    /// Lines of given sizes at given times get the expected decisions.
    #[test]
    fn log_limits_drop_excess_entries() {
        /// Name, limits of bytes and lines, times and lengths of entries, and the expected decisions.
        type LimitRow = (&'static str, Option<u64>, Option<u64>, &'static [(u64, usize)], &'static str);
        let table: [LimitRow; 9] = [
            ("one burst of a second's output", Some(10), None, &[(0, 5), (0, 5), (0, 1)], "..!"),
            ("reported once", Some(10), None, &[(0, 10), (1, 9), (2, 9), (3, 9)], ".!xx"),
            ("refilled over time", Some(10), None, &[(0, 10), (100, 1), (100, 1), (300, 2)], "..!."),
            ("reported again after an overage", Some(10), None, &[(0, 10), (0, 1), (2000, 10), (2000, 1)], ".!.!"),
            (
                "an overage that continues",
                Some(10),
                None,
                &[(0, 10), (0, 9), (900, 9), (950, 9), (1900, 9), (1901, 9)],
                ".!.x.x",
            ),
            ("a line longer than the limit", Some(10), None, &[(0, 25), (1000, 1), (1500, 1), (1600, 1)], ".!x."),
            ("nothing", Some(0), None, &[(0, 1), (5000, 1), (9000, 1)], "xxx"),
            ("lines", None, Some(2), &[(0, 900), (0, 900), (0, 1), (500, 1), (500, 1)], "..!.x"),
            ("both", Some(100), Some(2), &[(0, 1), (0, 101), (0, 1), (0, 1)], ".!.x"),
        ];
        for (name, bytes, lines, entries, expected) in table {
            let mut limiter = limiter(bytes, lines);
            let reported = entries.iter().map(|(at, bytes)| decide(&mut limiter, *at, Stream::Stdout, *bytes, true));
            assert_eq!(reported.collect::<String>(), expected, "{name}");
        }
        assert!(LogLimiter::new(LogLimits::default()).is_none());
    }

    #[test]
    fn message_names_the_exceeded_limit() {
        let mut limiter = limiter(Some(1024), Some(1));
        let entry = Entry { time: Timestamp(1), stream: Stream::Stdout, complete: true, source: "", content: b"x" };
        assert_eq!(limiter.decide(Duration::ZERO, &entry), Decision::Keep);
        let Decision::DropAndReport(words) = limiter.decide(Duration::ZERO, &entry) else { panic!() };
        assert_eq!(words, "app instance exceeded log rate limit (1 log-lines/sec)");
        let own = Entry { stream: Stream::Executor, ..entry };
        assert_eq!(limiter.decide(Duration::ZERO, &own), Decision::Keep, "messages of the executor are kept");
    }

    #[test]
    fn partial_lines_count_once_per_stream() {
        let mut limiter = limiter(None, Some(2));
        let steps = [
            (Stream::Stdout, false, '.'),
            (Stream::Stderr, false, '.'),
            (Stream::Stdout, false, '.'),
            (Stream::Stdout, true, '.'),
            (Stream::Stdout, true, '!'),
            (Stream::Stderr, true, '.'),
            (Stream::Stderr, false, 'x'),
            (Stream::Stderr, true, 'x'),
        ];
        for (step, (stream, complete, expected)) in steps.into_iter().enumerate() {
            assert_eq!(decide(&mut limiter, 0, stream, 5, complete), expected, "step {step}");
        }
    }

    proptest::proptest! {
        /// The entries kept in any time span are within the limits for any input, and each overage is reported once.
        #[test]
        fn log_limits_hold_in_every_interval(
            bytes in 1u64..200,
            lines in 1u64..20,
            entries in proptest::collection::vec((0u64..700, 1usize..120, proptest::bool::ANY), 1..200),
        ) {
            let mut limiter = limiter(Some(bytes), Some(lines));
            let (mut now, mut kept, mut last_drop, mut reported) = (0, Vec::new(), None, 0);
            for (pause, length, complete) in entries {
                now += pause;
                match decide(&mut limiter, now, Stream::Stdout, length, complete) {
                    '.' => kept.push((now, length as u64)),
                    mark => {
                        let calm = last_drop.is_none_or(|at| now - at >= SECOND);
                        proptest::prop_assert!(mark == 'x' || calm, "the overage was reported again within a second");
                        proptest::prop_assert!(mark == '!' || reported > 0, "dropped entries were not reported");
                        reported += u64::from(mark == '!');
                        last_drop = Some(now);
                    }
                }
            }
            for (index, (from, _)) in kept.iter().enumerate() {
                let mut sum = 0;
                for (to, length) in &kept[index..] {
                    // The sum excludes this entry, which may be longer than the remaining amount.
                    proptest::prop_assert!(sum * SECOND <= bytes * SECOND + bytes * (to - from));
                    sum += length;
                }
            }
        }
    }
}
