//! `inspect ID`: everything that is known of a container, and no secret.

use std::time::SystemTime;

use clap::Args;

use crate::failure::Failure;
use crate::session::Session;
use crate::status::Doing as _;
use crate::view;

#[derive(Clone, Debug, Args)]
pub(crate) struct IdArg {
    /// Id of the container, or a unique beginning of it
    pub(crate) id: String,
}

pub(super) async fn inspect(session: &Session, id: String) -> Result<u8, Failure> {
    let container = session.client.get(&id).await.doing(&format!("inspect {id}"))?;
    let document = view::json::Container::from(&container);
    session.print(&document, || view::inspect::container(&container, SystemTime::now(), session.style)).await;
    Ok(0)
}
