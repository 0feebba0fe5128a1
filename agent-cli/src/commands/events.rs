//! `events`: what happens to containers, over restarts of executord.
//!
//! It always goes by cursors, also for "from now on": so no event is lost while the connection is.

use clap::Args;
use executor_proto::v1::{InfoRequest, WatchEventsRequest, WatchEventsResponse};
use tokio::time::Instant;

use crate::connect::Patience;
use crate::failure::Failure;
use crate::ids;
use crate::session::Session;
use crate::status::is_away;
use crate::view::{human, json};

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Begin after this event; 0 for all that are kept [default: what happens from now on]
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<u64>,
    /// Of this container only
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
    let failure = |status| session.client.failure(DOING, &status);
    let mut after = match args.after {
        Some(cursor) => cursor,
        None => session.client.rpc().info(InfoRequest {}).await.map_err(failure)?.into_inner().cursor,
    };
    let mut patience = Patience::default();
    loop {
        let begun = Instant::now();
        let request = WatchEventsRequest { after_cursor: after, only_new: false, container_id: container_id.clone() };
        let broken = match session.client.rpc().watch_events(request).await {
            Err(status) => status,
            Ok(stream) => {
                let mut stream = stream.into_inner();
                loop {
                    match stream.message().await {
                        Ok(Some(response)) => {
                            patience.heard();
                            after = response.event.as_ref().map_or(after, |event| event.cursor.max(after));
                            show(session, &response).await;
                        }
                        // executord ends this stream only when it shuts down.
                        Ok(None) => break tonic::Status::unknown("the stream ended"),
                        Err(status) => break status,
                    }
                }
            }
        };
        if !is_away(&broken) {
            return Err(failure(broken));
        }
        patience.since(begun);
        if !patience.pause().await {
            return Err(session.client.gave_up(DOING));
        }
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
