//! `signal ID SIGNAL`.

use clap::Args;
use executor_proto::v1::SignalRequest;

use crate::failure::Failure;
use crate::session::Session;
use crate::signals;
use crate::view::json;

#[derive(Clone, Debug, Args)]
pub(crate) struct SignalArgs {
    /// Id of the container, or a unique beginning of it
    pub(crate) id: String,
    /// Name or number: TERM, SIGUSR1, 9, RTMIN+1
    #[arg(value_parser = signals::parse)]
    pub(crate) signal: u32,
}

pub(super) async fn signal(session: &Session, args: SignalArgs) -> Result<u8, Failure> {
    let SignalArgs { id, signal } = args;
    let request = SignalRequest { id: id.clone(), signal, process_id: String::new() };
    session.client.rpc().signal(request).await.map_err(|status| {
        let name = i32::try_from(signal).map_or_else(|_| signal.to_string(), signals::name);
        session.client.failure(&format!("send {name} to {id}"), &status)
    })?;
    if session.json {
        let done = json::Done { id, deleted: None, signal: Some(signal), error: None };
        session.output.text(json::document(&done)).await;
    }
    Ok(0)
}
