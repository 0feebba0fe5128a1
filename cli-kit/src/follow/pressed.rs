//! Counts Ctrl-C and other signals: the first stops the container, the second kills it, the third exits this command.

use std::io::IsTerminal as _;
use std::time::Duration;

use tokio::signal::unix::SignalKind;
use tokio::time::Instant;

use crate::failure::Failure;
use crate::session::Session;

/// Number of signals after which this command exits immediately.
const EXIT_COUNT: u32 = 3;

/// Maximum time between two SIGTERMs, or two SIGHUPs, that count as one request. A program can get a signal twice:
/// timeout(1) sends it to its process and to the process group, and agent-cli forwards its own signals to a program.
const SAME_REQUEST_INTERVAL: Duration = Duration::from_millis(500);

pub struct SignalCounter {
    id: String,
    pub times: u32,
    /// Number and time of the last counted signal.
    last: Option<(i32, Instant)>,
    /// True if standard error is a terminal. Messages then describe the effect of the next Ctrl-C.
    prints_hints: bool,
}

impl SignalCounter {
    pub fn new(id: &str) -> Self {
        Self { id: id.to_owned(), times: 0, last: None, prints_hints: std::io::stderr().is_terminal() }
    }

    /// Counts a signal. Returns false if the signal repeats the previous request.
    ///
    /// # Errors
    /// Returns an error if this is the third request: this command exits immediately.
    pub fn record(&mut self, session: &Session, signal: i32) -> Result<bool, Failure> {
        if !self.counts(signal, Instant::now()) {
            return Ok(false);
        }
        if self.prints_hints && self.times < EXIT_COUNT {
            let next = if self.times == 1 {
                "stopping the container; the next signal kills the container"
            } else {
                "killing the container; the next signal exits this command immediately"
            };
            session.output.note(format!("{}: {next}", self.id));
        }
        if self.times >= EXIT_COUNT { Err(Failure::Abandoned { id: self.id.clone(), signal }) } else { Ok(true) }
    }

    /// Counts a signal received at `now`, unless it repeats the previous signal. Ctrl-C always counts.
    fn counts(&mut self, signal: i32, now: Instant) -> bool {
        let is_same = |(last, at): (i32, Instant)| last == signal && now.duration_since(at) < SAME_REQUEST_INTERVAL;
        if signal != SignalKind::interrupt().as_raw_value() && self.last.is_some_and(is_same) {
            return false;
        }
        self.last = Some((signal, now));
        self.times += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simultaneous_signals_count_as_one_request() {
        let (interrupt, terminate, hangup) = (2, 15, 1);
        let begun = Instant::now();
        // Milliseconds and signal of each arrival, and the expected number of requests.
        let table = [
            (0, terminate, 1),
            (3, terminate, 1),
            (499, terminate, 1),
            (500, terminate, 2),
            (501, interrupt, 3),
            (502, interrupt, 4),
            (503, terminate, 5),
            (504, hangup, 6),
            (505, hangup, 6),
        ];
        let mut signals = SignalCounter::new("x");
        for (after, signal, times) in table {
            let before = signals.times;
            let counted = signals.counts(signal, begun + Duration::from_millis(after));
            assert_eq!((signals.times, counted), (times, times > before), "{signal} after {after} ms");
        }
    }
}
