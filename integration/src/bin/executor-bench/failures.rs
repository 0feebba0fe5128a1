//! Many runs, eight at a time: the number of incorrect ones, and the processor time of each.

use std::time::Duration;

use crate::client::Client;
use crate::host::{self, Host};
use crate::throughput::of_executor;

/// Number of runs.
pub(crate) const RUNS: u32 = 1000;
/// Concurrent runs.
pub(crate) const LANES: u32 = 8;

/// Result of the runs.
pub(crate) struct Failures {
    /// Failures, one per line.
    pub(crate) lines: Vec<String>,
    /// Processor time of the whole machine per run, the client's included.
    pub(crate) processor: Duration,
}

/// Runs the containers and counts failures; a failure does not end the measurement.
pub(crate) async fn measure(host: &Host, client: &Client) -> anyhow::Result<Failures> {
    host.go_on().await?;
    let before = host::processor_time()?;
    let (failures, _) = of_executor(client, LANES, RUNS, "many").await;
    let processor = host::processor_time()?.saturating_sub(before) / RUNS;
    Ok(Failures { lines: failures.iter().map(|failure| format!("{failure:#}")).collect(), processor })
}
