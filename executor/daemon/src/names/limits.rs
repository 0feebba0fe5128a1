//! Limits of the name server, so that one container cannot block the others.

use std::sync::{Arc, Mutex};

use executor_sys::mutex::locked;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Maximum number of queries per second of one container.
const QUERIES_A_SECOND: f64 = 500.0;
/// Maximum number of queries of one container in a burst.
const BURST: f64 = 1000.0;
/// Maximum number of queries that are being forwarded for all containers together.
pub(super) const FORWARDS_MAX: usize = 256;
/// Maximum number of queries that are being forwarded for one container.
const FORWARDS_OF_ONE: usize = 32;
/// Maximum number of TCP connections of all containers together.
pub(super) const CONNECTIONS_MAX: usize = 256;
/// Maximum number of TCP connections of one container.
const CONNECTIONS_OF_ONE: usize = 8;
/// Maximum number of queries from containers whose start has not been reported yet.
pub(super) const WAITING_MAX: usize = 64;

/// Resources that one container may use.
#[derive(Debug)]
pub(super) struct Quota {
    bucket: Mutex<Bucket>,
    /// Permits for forwarding a query.
    pub(super) forwards: Arc<Semaphore>,
    /// Permits for TCP connections.
    pub(super) connections: Arc<Semaphore>,
}

/// Token bucket that limits the query rate of a container.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled_at: Instant,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            bucket: Mutex::new(Bucket { tokens: BURST, filled_at: Instant::now() }),
            forwards: Arc::new(Semaphore::new(FORWARDS_OF_ONE)),
            connections: Arc::new(Semaphore::new(CONNECTIONS_OF_ONE)),
        }
    }
}

impl Quota {
    /// Counts a query. Returns false if the query exceeds the rate.
    pub(super) fn take_query(&self) -> bool {
        let mut bucket = locked(&self.bucket);
        let now = Instant::now();
        let added = now.duration_since(bucket.filled_at).as_secs_f64() * QUERIES_A_SECOND;
        bucket.tokens = (bucket.tokens + added).min(BURST);
        bucket.filled_at = now;
        let has_one = bucket.tokens >= 1.0;
        if has_one {
            bucket.tokens -= 1.0;
        }
        has_one
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn queries_beyond_the_rate_are_refused() {
        let quota = Quota::default();
        let taken = |quota: &Quota| (0..5000).filter(|_| quota.take_query()).count();
        assert_eq!(taken(&quota), 1000);
        tokio::time::advance(Duration::from_millis(100)).await;
        assert_eq!(taken(&quota), 50);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(taken(&quota), 1000);
        assert_eq!(taken(&Quota::default()), 1000);
    }
}
