//! `signal ID SIGNAL` and `kill ID...`: sends signals to containers.

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::signals;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::view::json::to_document;

use crate::batch;
use crate::view::json;

#[derive(Clone, Debug, Args)]
pub(crate) struct SignalArgs {
    /// Id of the container, or a unique prefix
    pub(crate) id: String,
    /// Name or number: TERM, SIGUSR1, 9, RTMIN+1
    #[arg(value_parser = signals::parse)]
    pub(crate) signal: u32,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct KillArgs {
    /// Name or number of another signal: TERM, SIGUSR1, 9
    #[arg(long, short, value_parser = signals::parse, default_value = "KILL")]
    pub(crate) signal: u32,
    /// Ids of the containers, or unique prefixes
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

/// Signals several containers. Prints the id of each, like docker.
pub(super) async fn kill(session: &Session, args: KillArgs) -> Result<u8, Failure> {
    let signal = args.signal;
    let done = |id, error: Option<String>| json::Done {
        signal: error.is_none().then_some(signal),
        ..json::Done::new(id, error)
    };
    batch::in_turn(session, args.ids, |id| send(session, id, signal), done).await
}

/// Sends a signal; returns the id.
async fn send(session: &Session, id: String, signal: u32) -> Result<String, Failure> {
    let name = i32::try_from(signal).map_or_else(|_| signal.to_string(), signals::name);
    session.client.signal(&id, signal).await.doing(&format!("send {name} to {id}"))?;
    Ok(id)
}

pub(super) async fn signal(session: &Session, args: SignalArgs) -> Result<u8, Failure> {
    let SignalArgs { id, signal } = args;
    let id = send(session, id, signal).await?;
    if session.json {
        let done = json::Done { signal: Some(signal), ..json::Done::new(id, None) };
        session.output.text(to_document(&done)).await;
    }
    Ok(0)
}
