//! `wait ID...`: waits until containers are completed, across restarts of executord; exits like the process.

use clap::Args;
use executor_client::v1::Container;

use crate::container::completed;
use crate::exit::Outcome;
use crate::failure::Failure;
use crate::session::Session;

#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// Ids of the containers, or unique prefixes
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

pub(super) async fn wait(session: &Session, args: WaitArgs) -> Result<u8, Failure> {
    let several = args.ids.len() > 1;
    let ended = session.each(args.ids, |client, id| async move { completed(&client, &id).await }).await;
    let status = |container: &Container| Outcome::new(container.result.as_ref()).status();
    for container in ended.iter().filter_map(|(_, ended)| ended.as_ref().ok()) {
        if several && !session.json {
            session.output.text(format!("{}\n", status(container))).await;
        }
        session.explain_end(container, &[]);
    }
    let containers = session.report(ended).await?;
    Ok(containers.iter().map(status).find(|status| *status != 0).unwrap_or(0))
}
