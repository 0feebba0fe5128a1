//! `reopen-log ID...`: opens the log files of containers again.

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;

use crate::batch;
use crate::view::json;

#[derive(Clone, Debug, Args)]
pub(crate) struct ReopenLogArgs {
    /// Ids of the containers, or unique prefixes
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

/// Reopens the log files of several containers. Prints the id of each.
pub(super) async fn reopen_log(session: &Session, args: ReopenLogArgs) -> Result<u8, Failure> {
    let client = &session.client;
    let reopen = |id: String| async move {
        client.reopen_log(&id).await.doing(&format!("reopen the log of {id}"))?;
        Ok(id)
    };
    let done = |id, error: Option<String>| json::Done {
        reopened: error.is_none().then_some(true),
        ..json::Done::new(id, error)
    };
    batch::in_turn(session, args.ids, reopen, done).await
}
