//! `container prune`: removes completed containers.

use clap::{Args, Subcommand};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::text::plain;
use executor_client::ListFilter;
use executor_client::v1::State;

use crate::batch;
use crate::filter::{self, ContainerFilter};
use crate::view::json;

#[derive(Debug, Subcommand)]
pub(crate) enum ContainerCommand {
    /// Remove all completed containers with their logs and outputs
    ///
    /// Prints the id of each. Asks for no confirmation.
    Prune(PruneArgs),
}

#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    /// Remove only matching containers: until=24h, label=NAME; can be repeated
    ///
    /// Accepts the same keys and rules as `ps --filter`.
    #[arg(long = "filter", value_name = "KEY=VALUE", value_parser = ContainerFilter::parse)]
    pub(crate) filters: Vec<ContainerFilter>,
    /// Only show the containers that would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// No effect, for compatibility: docker uses it to skip a confirmation
    #[arg(long, short, hide = true)]
    pub(crate) force: bool,
}

pub(super) async fn container(session: &Session, command: ContainerCommand) -> Result<u8, Failure> {
    let ContainerCommand::Prune(PruneArgs { filters, dry_run, force: _ }) = command;
    let completed = ListFilter { states: vec![State::Completed], ..ListFilter::default() };
    let completed = session.client.list(&completed).await.doing("list completed containers")?;
    let (mut done, mut failures) = (Vec::new(), Vec::new());
    for container in completed.into_iter().filter(|container| filter::passes(&filters, container)) {
        let id = container.id;
        let deleted = match dry_run {
            true => Ok(()),
            false => session.client.delete(&id, false).await.doing(&format!("remove {id}")),
        };
        match deleted {
            // Another client has removed the container.
            Err(failure) if failure.code() == Some(executor_client::Code::NotFound) => {}
            Err(failure) => {
                done.push(json::Done { deleted: Some(false), ..json::Done::new(id, Some(failure.describe())) });
                failures.push(failure);
            }
            Ok(()) => {
                if !session.json {
                    session.output.text(format!("{}\n", plain(&id))).await;
                }
                done.push(json::Done { deleted: Some(!dry_run), ..json::Done::new(id, None) });
            }
        }
    }
    batch::finish(session, &done, failures).await
}
