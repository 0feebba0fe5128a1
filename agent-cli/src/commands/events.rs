//! `events`: what happens to containers, over restarts of executord.
//!
//! The command always uses cursors, also for "from now on", so that no event is lost while the connection is down.

use clap::Args;
use executor_client::v1::WatchEventsResponse;

use crate::failure::Failure;
use crate::ids;
use crate::session::Session;
use crate::status::Doing as _;
use crate::view::{human, json};

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Begin after this event; 0 for all that are kept [default: events from now on]
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<u64>,
    /// Show events of this container only
    #[arg(long)]
    pub(crate) id: Option<String>,
}

const DOING: &str = "events";

pub(super) async fn events(session: &Session, args: EventsArgs) -> Result<u8, Failure> {
    let mut container_id = args.id.unwrap_or_default();
    // One that is deleted has events, too: what no container begins with stays as it is.
    if let Some(whole) = ids::whole(&session.client, &container_id).await? {
        container_id = whole;
    }
    let mut events = session.client.events(args.after, &container_id).await.doing(DOING)?;
    loop {
        let response = events.next().await.doing(DOING)?;
        show(session, &response).await;
    }
}

async fn show(session: &Session, response: &WatchEventsResponse) {
    if session.json {
        session.output.text(json::line(&json::Event::from(response))).await;
        return;
    }
    if response.gap {
        session.output.note("some events before this one are no longer kept");
    }
    if let Some(event) = &response.event {
        session.output.text(human::event(event, session.style)).await;
    }
}
