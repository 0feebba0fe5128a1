//! `signal ID SIGNAL`.

use executor_proto::v1::SignalRequest;

use super::Session;
use crate::cli::SignalArgs;
use crate::failure::Failure;
use crate::signals;
use crate::view::json;

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
