//! `wait ID...`: waits until containers are completed, across restarts of executord; exits with the status of the
//! process.

use clap::Args;
use executor_cli_kit::container::completed;
use executor_cli_kit::exit::Outcome;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_client::v1::Container;

use crate::batch;

#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// Ids of the containers, or unique prefixes
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

pub(super) async fn wait(session: &Session, args: WaitArgs) -> Result<u8, Failure> {
    let several = args.ids.len() > 1;
    let ended = batch::each(session, args.ids, |client, id| async move { completed(&client, &id).await }).await;
    let status = |container: &Container| Outcome::new(container.result.as_ref()).status();
    for container in ended.iter().filter_map(|(_, ended)| ended.as_ref().ok()) {
        if several && !session.json {
            session.output.text(format!("{}\n", status(container))).await;
        }
        batch::explain_end(session, container, &[]);
    }
    let containers = batch::report(session, ended).await?;
    Ok(containers.iter().map(status).find(|status| *status != 0).unwrap_or(0))
}
