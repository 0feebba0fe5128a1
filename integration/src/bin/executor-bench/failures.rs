//! Runs many containers, eight at a time, counts the failed runs, and measures the CPU time per run.

use crate::client::TRUE_WITH_SECRET;
use crate::processor::{IdleLoad, Meter, Used, Watched};
use crate::stage::Executor;
use crate::throughput::for_executor;

pub(crate) const RUNS: u32 = 1000;
/// Number of concurrent runs.
pub(crate) const LANES: u32 = 8;

/// Failures and CPU time of the runs of one daemon.
pub(crate) struct Failures {
    pub(crate) name: String,
    /// Failures, one per line.
    pub(crate) lines: Vec<String>,
    pub(crate) used: Used,
    /// Load of the idle machine.
    pub(crate) rest: IdleLoad,
}

/// Runs the containers and counts failures. A failure does not stop the measurement.
pub(crate) async fn measure(executor: &Executor) -> anyhow::Result<Failures> {
    integration::interrupt::check()?;
    let mut rest = IdleLoad::wait().await?;
    let meter = Meter::start(rest, Watched::Daemon(&executor.daemon))?;
    let run = for_executor(&executor.client, TRUE_WITH_SECRET, LANES, RUNS, "failures").await;
    let used = meter.stop(RUNS).await?;
    rest.sample().await?;
    let lines = run.failures.iter().map(|failure| format!("{failure:#}")).collect();
    Ok(Failures { name: executor.name.clone(), lines, used, rest })
}
