//! `pause ID...` and `unpause ID...`.

use clap::Args;

use crate::failure::Failure;
use crate::session::Session;
use crate::status::Doing as _;
use crate::view::json;

#[derive(Clone, Debug, Args)]
pub(crate) struct PauseArgs {
    /// Ids of the containers, or unique beginnings of them
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

/// Pauses several containers. Prints the id of each, as docker does.
pub(super) async fn pause(session: &Session, args: PauseArgs) -> Result<u8, Failure> {
    let pause = |id: String| async move {
        session.client.pause(&id).await.doing(&format!("pause {id}"))?;
        Ok(id)
    };
    let done = |id, error: Option<String>| json::Done {
        paused: error.is_none().then_some(true),
        ..json::Done::new(id, error)
    };
    session.in_turn(args.ids, pause, done).await
}

/// Lets several containers go on, likewise.
pub(super) async fn unpause(session: &Session, args: PauseArgs) -> Result<u8, Failure> {
    let resume = |id: String| async move {
        session.client.resume(&id).await.doing(&format!("unpause {id}"))?;
        Ok(id)
    };
    let done = |id, error: Option<String>| json::Done {
        paused: error.is_none().then_some(false),
        ..json::Done::new(id, error)
    };
    session.in_turn(args.ids, resume, done).await
}
