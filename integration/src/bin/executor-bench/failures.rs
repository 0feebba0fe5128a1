//! Many runs, eight at once, and how many of them were not exactly as they must be.

use crate::client::Client;
use crate::host::Host;
use crate::throughput::of_executor;

/// Runs.
pub(crate) const RUNS: u32 = 1000;
/// At once.
pub(crate) const LANES: u32 = 8;

/// What went wrong, one line each.
pub(crate) struct Failures(pub(crate) Vec<String>);

/// Counts; a failure does not end it.
pub(crate) async fn measure(host: &Host, client: &Client) -> anyhow::Result<Failures> {
    host.go_on().await?;
    let (failures, _) = of_executor(client, LANES, RUNS, "many").await;
    Ok(Failures(failures.iter().map(|failure| format!("{failure:#}")).collect()))
}
