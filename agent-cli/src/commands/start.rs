//! `start ID...`: starts the processes of containers that were created with `run --hold`.

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::text::plain;
use executor_client::Code;

use crate::batch;
use crate::view::json;

#[derive(Clone, Debug, Args)]
pub(crate) struct StartArgs {
    /// Ids of the containers, or unique prefixes
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

/// Starts several containers. Prints the id of each, like docker.
pub(super) async fn start(session: &Session, args: StartArgs) -> Result<u8, Failure> {
    let client = &session.client;
    let start = |id: String| async move {
        let container = client.start(&id).await.doing(&format!("start {id}"))?;
        match container.result.and_then(|result| result.failure).filter(|_| container.started_at.is_none()) {
            None => Ok(id),
            Some(failure) => {
                let message = format!("start {id}: {}", plain(&failure.message));
                Err(Failure::Refused { code: Code::FailedPrecondition, message })
            }
        }
    };
    let done = |id, error: Option<String>| json::Done {
        started: error.is_none().then_some(true),
        ..json::Done::new(id, error)
    };
    batch::in_turn(session, args.ids, start, done).await
}
