//! Many runs, eight at once: how many of them were not exactly as they must be, and what processor time each takes.

use std::time::Duration;

use crate::client::Client;
use crate::host::{self, Host};
use crate::throughput::of_executor;

/// Runs.
pub(crate) const RUNS: u32 = 1000;
/// At once.
pub(crate) const LANES: u32 = 8;

/// What came of them.
pub(crate) struct Failures {
    /// What went wrong, one line each.
    pub(crate) lines: Vec<String>,
    /// Processor time of the whole machine for each run, the client's included.
    pub(crate) processor: Duration,
}

/// Counts; a failure does not end it.
pub(crate) async fn measure(host: &Host, client: &Client) -> anyhow::Result<Failures> {
    host.go_on().await?;
    let before = host::processor_time()?;
    let (failures, _) = of_executor(client, LANES, RUNS, "many").await;
    let processor = host::processor_time()?.saturating_sub(before) / RUNS;
    Ok(Failures { lines: failures.iter().map(|failure| format!("{failure:#}")).collect(), processor })
}
