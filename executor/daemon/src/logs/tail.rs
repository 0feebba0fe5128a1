//! Selects the last lines of a log.
//!
//! A log is read twice from its beginning: once to count its lines, and once to return the last lines. A line can
//! consist of several entries, and entries of two streams can alternate, so the incomplete line of each stream is
//! tracked separately.

use executor_core::logline::{Entry, Stream};

/// Numbers lines in the order in which they start.
#[derive(Debug, Default)]
pub struct Lines {
    begun: u64,
    /// Line number of the incomplete line of each stream, if any.
    open: [Option<u64>; 3],
}

impl Lines {
    /// Returns the line number of the next entry of a log, starting at 1.
    fn number(&mut self, entry: &Entry<'_>) -> u64 {
        let open = &mut self.open[match entry.stream {
            Stream::Stdout => 0,
            Stream::Stderr => 1,
            Stream::Executor => 2,
        }];
        let number = open.take().unwrap_or_else(|| {
            self.begun += 1;
            self.begun
        });
        if !entry.complete {
            *open = Some(number);
        }
        number
    }
}

/// Selects the last lines, and skips the lines before them.
#[derive(Debug, Default)]
pub struct Tail {
    skip: u64,
    lines: Lines,
}

impl Tail {
    /// Creates a tail that skips all lines, to count them.
    pub fn counting() -> Self {
        Self { skip: u64::MAX, lines: Lines::default() }
    }

    /// Creates a tail that selects the last `lines` of the counted lines, and all later lines.
    pub fn last(&self, lines: u64) -> Self {
        Self { skip: self.lines.begun.saturating_sub(lines), lines: Lines::default() }
    }

    /// Counts the next entry of a log; returns true if the entry belongs to the selected lines.
    pub fn takes(&mut self, entry: &Entry<'_>) -> bool {
        self.lines.number(entry) > self.skip
    }

    /// Returns true if the next entry of the log may belong to the selected lines.
    pub fn has_begun(&self) -> bool {
        self.lines.begun >= self.skip
    }
}

#[cfg(test)]
mod tests {
    use executor_core::time::Timestamp;

    use super::*;

    #[test]
    fn the_last_lines_with_all_their_parts() {
        let entry = |time, stream, complete, content: &'static str| Entry {
            time: Timestamp(time),
            stream,
            complete,
            source: "",
            content: content.as_bytes(),
        };
        let log = [
            entry(1, Stream::Stdout, true, "a"),
            entry(2, Stream::Stdout, false, "b1"),
            entry(3, Stream::Stderr, true, "c"),
            entry(4, Stream::Stdout, true, "b2"),
            entry(5, Stream::Stdout, false, "d1"),
            entry(5, Stream::Executor, true, "e"),
            entry(9, Stream::Stdout, true, "d2"),
        ];
        let reported = |lines: u64| {
            let mut counted = Tail::counting();
            // The last entry arrives after the call has started.
            assert!(!log[..log.len() - 1].iter().any(|entry| counted.takes(entry)));
            let mut tail = counted.last(lines);
            let taken = log.iter().filter(|entry| tail.takes(entry));
            taken.map(|entry| std::str::from_utf8(entry.content).unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(reported(100), "a b1 c b2 d1 e d2");
        assert_eq!(reported(4), "b1 c b2 d1 e d2");
        assert_eq!(reported(3), "c d1 e d2", "b began before c");
        assert_eq!(reported(1), "e");
        assert_eq!(reported(0), "");
    }
}
