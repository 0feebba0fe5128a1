//! Repeats calls while executord is unavailable.
//!
//! A response from executord is final. If the connection breaks, a call that is safe to repeat is repeated. If
//! executord responds that it is unavailable, a call is repeated only if it uses `is_away`.

use std::error::Error as _;
use std::time::Duration;

use tokio::time::Instant;
use tonic::{Code, Status};

/// Duration of the first pause between two attempts. Each further pause is twice as long.
const DELAY_MIN: Duration = Duration::from_millis(1);
/// Maximum pause between two attempts.
const DELAY_MAX: Duration = Duration::from_secs(1);

/// Returns true if this client created the status because the connection broke. The outcome of the call is then
/// unknown.
///
/// A status from executord carries no source. `Unknown` is the status of a stream that ends without trailers;
/// executord never returns it.
pub(crate) fn is_lost(status: &Status) -> bool {
    status.source().is_some() || status.code() == Code::Unknown
}

/// Returns true if an RPC that waits for executord is retried after this status: the connection broke ([`is_lost`]), or
/// executord is unavailable.
pub(crate) fn is_away(status: &Status) -> bool {
    is_lost(status) || status.code() == Code::Unavailable
}

/// Measures the time without a response from executord, and pauses between attempts for increasing times.
///
/// The daemon's own retries (`executor_core::backoff`) never give up, and this crate does not depend on executor-core.
#[derive(Debug)]
pub(crate) struct Patience {
    longest: Duration,
    silent_since: Option<Instant>,
    pause: Duration,
}

impl Patience {
    pub(crate) fn new(longest: Duration) -> Self {
        Self { longest, silent_since: None, pause: Duration::ZERO }
    }

    /// Resets the clock after a response. The clock starts again at the next failure.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.longest);
    }

    /// Resets the clock if the failed attempt began more than [`DELAY_MAX`] ago, because such an attempt had a
    /// connection.
    pub(crate) fn since(&mut self, begun: Instant) {
        if begun.elapsed() > DELAY_MAX {
            self.reset();
        }
    }

    /// Waits after a failed attempt that began at `begun`. `was_lost` is true if executord did not respond; after a
    /// response, the length of the attempt does not matter. Returns false if the time limit has passed.
    pub(crate) async fn pause_after(&mut self, begun: Instant, was_lost: bool) -> bool {
        if was_lost {
            self.since(begun);
        }
        self.pause().await
    }

    /// Waits before the next attempt. Returns false if the time limit has passed.
    pub(crate) async fn pause(&mut self) -> bool {
        let now = Instant::now();
        let silent_since = *self.silent_since.get_or_insert(now);
        if now.duration_since(silent_since) >= self.longest {
            return false;
        }
        self.pause = (self.pause * 2).clamp(DELAY_MIN, DELAY_MAX);
        tokio::time::sleep(self.pause).await;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    const LONGEST: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn patience_ends_after_time_limit() {
        let begun = Instant::now();
        let mut patience = Patience::new(LONGEST);
        let mut attempts = 0;
        while patience.pause().await {
            attempts += 1;
        }
        let waited = begun.elapsed();
        assert!(waited >= LONGEST && waited < LONGEST + DELAY_MAX, "{waited:?}");
        assert!((30..60).contains(&attempts), "{attempts}");
    }

    #[tokio::test(start_paused = true)]
    async fn patience_restarts_after_reset() {
        let mut patience = Patience::new(LONGEST);
        for _ in 0..100 {
            assert!(patience.pause().await);
            patience.reset();
        }
        let begun = Instant::now();
        tokio::time::sleep(Duration::from_secs(5)).await;
        while patience.pause().await {}
        patience.since(begun);
        assert!(patience.pause().await, "an attempt that lasts seconds had a connection");
    }

    /// StopPod takes seconds to report that a container is in quarantine. Retries of such a call end, too.
    #[tokio::test(start_paused = true)]
    async fn patience_ends_if_executord_responds_late() {
        async fn attempts(was_lost: bool) -> u32 {
            let mut patience = Patience::new(LONGEST);
            for attempt in 0..100 {
                let begun = Instant::now();
                tokio::time::advance(Duration::from_secs(2)).await; // the duration of the attempt
                if !patience.pause_after(begun, was_lost).await {
                    return attempt;
                }
            }
            100
        }
        assert!(attempts(false).await < 30);
        assert_eq!(attempts(true).await, 100, "control failed");
    }

    #[test]
    fn server_errors_differ_from_lost_connections() {
        for code in [Code::Unavailable, Code::NotFound, Code::Internal, Code::InvalidArgument] {
            assert!(!is_lost(&Status::new(code, "said executord")), "{code:?}");
        }
        assert!(is_away(&Status::unavailable("said executord")) && !is_away(&Status::internal("said executord")));
        let broken = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_lost(&Status::from_error(Box::new(broken))));
    }
}
