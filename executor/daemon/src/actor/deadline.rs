//! Time limits of lifecycle phases.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::container::link::ShimLink;
use crate::model::quarantine::Phase;

/// Interval at which the end of a grace period is recomputed, because another stop can shorten the grace period.
const DEADLINE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Time limit of a lifecycle phase.
pub(super) struct Deadline {
    pub(super) phase: Phase,
    pub(super) since: Instant,
    pub(super) limit: Duration,
    /// The container's own grace period.
    pub(super) grace: Duration,
    pub(super) link: Option<Arc<ShimLink>>,
}

impl Deadline {
    /// Waits until the limit is reached; pends forever if there is no limit. The limit of the stop phase counts from
    /// the end of the grace period.
    pub(super) async fn reached(deadline: Option<Self>) {
        let Some(Self { phase, since, limit, grace, link }) = deadline else { return std::future::pending().await };
        if phase != Phase::Stop {
            return tokio::time::sleep_until(since + limit).await;
        }
        loop {
            let reported = link.as_ref().and_then(|link| link.kill_at()).unwrap_or(since + grace);
            let due = reported.max(since) + limit;
            if due <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(due.min(Instant::now() + DEADLINE_POLL_INTERVAL)).await;
        }
    }
}
