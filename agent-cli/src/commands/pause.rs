//! `pause ID...` and `unpause ID...`: suspends and resumes containers.

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;

use crate::batch;
use crate::view::json;

#[derive(Clone, Debug, Args)]
pub(crate) struct PauseArgs {
    /// Ids of the containers, or unique prefixes
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

/// Pauses or resumes several containers. Prints the id of each, like docker.
pub(super) async fn pause(session: &Session, args: PauseArgs, paused: bool) -> Result<u8, Failure> {
    let client = &session.client;
    let change = |id: String| async move {
        match paused {
            true => client.pause(&id).await.doing(&format!("pause {id}"))?,
            false => client.resume(&id).await.doing(&format!("unpause {id}"))?,
        };
        Ok(id)
    };
    let done = |id, error: Option<String>| json::Done {
        paused: error.is_none().then_some(paused),
        ..json::Done::new(id, error)
    };
    batch::in_turn(session, args.ids, change, done).await
}
