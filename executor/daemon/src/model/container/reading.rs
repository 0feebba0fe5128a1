//! The latest reading of a container's counters, which all calls, streams and scrapes share.
//!
//! The daemon sends a shim one request at a time, and at most one request per [`READING_LIFETIME`], regardless of the
//! number of clients. A request continues after its client disconnects, so that clients that connect and disconnect
//! cause no further requests.

use std::sync::Arc;
use std::time::Duration;

use executor_core::usage::Usage;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};

use super::link::ShimLink;

/// Time for which a reading is reused.
pub(crate) const READING_LIFETIME: Duration = Duration::from_millis(900);
/// Time limit for a shim to respond. The shim may be busy writing new secret files.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The latest reading; locked while the shim is queried.
#[derive(Debug, Default)]
pub(crate) struct LatestReading(Arc<Mutex<Option<CachedReading>>>);

#[derive(Debug)]
struct CachedReading {
    at: Instant,
    /// True if the counters cover only the log.
    log_only: bool,
    /// Counters; unset if the shim did not respond.
    usage: Option<Usage>,
}

/// Error if there is no fresh reading: the shim must be queried, or a query is in progress.
#[derive(Debug)]
pub(crate) struct NoFreshReading;

impl CachedReading {
    fn answers(&self, log_only: bool) -> bool {
        self.at.elapsed() < READING_LIFETIME && (log_only || !self.log_only)
    }
}

impl LatestReading {
    /// Returns the latest reading; `None` if the shim did not respond.
    ///
    /// # Errors
    /// Returns [`NoFreshReading`] if the reading is too old or covers too little, or if a query is in progress.
    pub(crate) fn get(&self, log_only: bool) -> Result<Option<Usage>, NoFreshReading> {
        let taken = self.0.try_lock().map_err(|_| NoFreshReading)?;
        let fresh = taken.as_ref().filter(|taken| taken.answers(log_only)).ok_or(NoFreshReading)?;
        Ok(fresh.usage.clone())
    }

    /// Returns a fresh reading, and queries the shim if necessary; `None` if the shim does not respond by the deadline.
    /// `requests` counts the requests to shims.
    pub(crate) async fn read(
        &self,
        shim: Arc<ShimLink>,
        log_only: bool,
        deadline: Instant,
        requests: Counter,
    ) -> Option<Usage> {
        self.read_by(log_only, deadline, async move {
            requests.inc();
            shim.usage(log_only).await.ok()
        })
        .await
    }

    async fn read_by(
        &self,
        log_only: bool,
        by: Instant,
        ask: impl Future<Output = Option<Usage>> + Send + 'static,
    ) -> Option<Usage> {
        let mut taken = timeout_at(by, Arc::clone(&self.0).lock_owned()).await.ok()?;
        if let Some(taken) = taken.as_ref().filter(|taken| taken.answers(log_only)) {
            return taken.usage.clone();
        }
        let asking = tokio::spawn(async move {
            let usage = timeout(RESPONSE_TIMEOUT, ask).await.ok().flatten();
            *taken = Some(CachedReading { at: Instant::now(), log_only, usage: usage.clone() });
            usage
        });
        timeout_at(by, asking).await.ok()?.ok()?
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Queries a simulated shim that responds after a delay, and counts the queries.
    async fn read(latest: &LatestReading, log_only: bool, within: Duration, asked: &Arc<AtomicUsize>) -> bool {
        let asked = Arc::clone(asked);
        let ask = async move {
            asked.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(100)).await; // paused clock: the shim's time to respond
            Some(Usage::default())
        };
        latest.read_by(log_only, Instant::now() + within, ask).await.is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn many_readers_cause_one_request_each_second() {
        let (latest, asked) = (LatestReading::default(), Arc::default());
        let second = Duration::from_secs(1);
        for round in 1..=3 {
            let mut all = std::pin::pin!(async {
                let [a, b, c] = [false, true, false].map(|log_only| read(&latest, log_only, second, &asked));
                tokio::join!(a, b, c)
            });
            assert_eq!(all.as_mut().await, (true, true, true));
            assert!(matches!(latest.get(false), Ok(Some(_))));
            assert_eq!(asked.load(Ordering::SeqCst), round);
            tokio::time::sleep(READING_LIFETIME).await; // paused clock: the reading becomes stale
            assert!(latest.get(true).is_err());
        }
        assert!(read(&latest, true, second, &asked).await);
        assert!(read(&latest, false, second, &asked).await, "a log reading was reused for the container's counters");
        assert_eq!(asked.load(Ordering::SeqCst), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn request_outlives_the_reader_that_made_it() {
        let (latest, asked) = (LatestReading::default(), Arc::default());
        for _ in 0..10 {
            assert!(!read(&latest, false, Duration::from_millis(1), &asked).await);
        }
        assert!(read(&latest, false, Duration::from_secs(1), &asked).await);
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }
}
