//! `inspect ID`: everything that is known of a container, and no secret.

use std::time::SystemTime;

use clap::Args;
use executor_proto::v1::GetRequest;

use crate::container::expected;
use crate::failure::Failure;
use crate::session::Session;
use crate::view;

#[derive(Clone, Debug, Args)]
pub(crate) struct IdArg {
    /// Id of the container, or a unique beginning of it
    pub(crate) id: String,
}

pub(super) async fn inspect(session: &Session, id: String) -> Result<u8, Failure> {
    let doing = format!("inspect {id}");
    let answer = session.client.rpc().get(GetRequest { id }).await;
    let answer = answer.map_err(|status| session.client.failure(&doing, &status))?.into_inner();
    let container = expected(answer.container, &doing)?;
    let document = view::json::Container::from(&container);
    session.print(&document, || view::inspect::container(&container, SystemTime::now(), session.style)).await;
    Ok(0)
}
