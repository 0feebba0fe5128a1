//! `stop ID...`: sends the stop signal, and SIGKILL after the grace period; waits for completion.

use std::time::Duration;

use clap::Args;
use executor_cli_kit::container::completed;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::{signals, units};

use crate::batch;

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// Grace period, instead of the container's own: 0s, 500ms, 1m30s; a plain number is seconds
    #[arg(long, short = 't', visible_aliases = ["time", "timeout"], value_name = "DURATION", value_parser = units::grace)]
    pub(crate) grace: Option<Duration>,
    /// Signal to send instead of the container's own stop signal: TERM, SIGINT, 3
    #[arg(long, short, value_name = "SIGNAL", value_parser = signals::parse)]
    pub(crate) signal: Option<u32>,
    /// Return immediately, without waiting for completion
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Ids of the containers, or unique prefixes
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

pub(super) async fn stop(session: &Session, args: StopArgs) -> Result<u8, Failure> {
    let StopArgs { grace, signal, no_wait, ids } = args;
    let stopped = batch::each(session, ids, move |client, id| async move {
        let stopping = client.stop_with(&id, grace, signal.unwrap_or(0)).await.doing(&format!("stop {id}"))?;
        if no_wait { Ok(stopping) } else { completed(&client, &id).await }
    });
    batch::report(session, stopped.await).await.map(|_| 0)
}
