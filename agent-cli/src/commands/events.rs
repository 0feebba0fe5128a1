//! `events`: follows events of containers, across restarts of executord.
//!
//! The command always uses cursors, even for new events only, so no event is lost during a reconnect.

use std::time::{Duration, SystemTime};

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::units;
use executor_cli_kit::view::json::to_line;
use executor_cli_kit::view::quantity;
use executor_client::v1::WatchEventsResponse;

use crate::filter::{self, EventFilter};
use crate::ids;
use crate::view::{human, json};

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Begin after this event; 0 for all retained events [default: new events only]
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<u64>,
    /// Show retained events from this time on: 2026-01-31T12:00:00Z, or 10m for the last ten minutes
    #[arg(long, value_name = "TIME", value_parser = |text: &str| units::instant(text, SystemTime::now()), conflicts_with = "after")]
    pub(crate) since: Option<SystemTime>,
    /// Show events up to this time, then exit
    #[arg(long, value_name = "TIME", value_parser = |text: &str| units::instant(text, SystemTime::now()))]
    pub(crate) until: Option<SystemTime>,
    /// Show only events of this container
    #[arg(long)]
    pub(crate) id: Option<String>,
    /// Show only matching events: event=completed, container=ID; can be repeated
    #[arg(long = "filter", short, value_name = "KEY=VALUE", value_parser = EventFilter::parse)]
    pub(crate) filters: Vec<EventFilter>,
}

const DOING: &str = "events";
/// Maximum interval between two reads of the clock.
const CLOCK_INTERVAL: Duration = Duration::from_secs(1);

pub(super) async fn events(session: &Session, args: EventsArgs) -> Result<u8, Failure> {
    let mut container_id = args.id.unwrap_or_default();
    // Deleted containers also have events. If no container has the prefix, the prefix is therefore used as an id.
    if let Some(whole) = ids::whole(&session.client, &container_id).await? {
        container_id = whole;
    }
    let mut filters = args.filters;
    for filter in &mut filters {
        if let EventFilter::Container(id) = filter
            && let Some(whole) = ids::whole(&session.client, id).await?
        {
            *id = whole;
        }
    }
    // With an end time, all events are received and filtered here: the event with the newest existing cursor marks the
    // end.
    let newest = if args.until.is_some() { session.client.info().await.doing(DOING)?.cursor } else { u64::MAX };
    let watched = if args.until.is_some() { "" } else { &*container_id };
    let after = args.after.or(args.since.map(|_| 0));
    if newest <= after.unwrap_or(newest) && has_passed(args.until) {
        return Ok(0);
    }
    let mut events = session.client.events(after, watched).await.doing(DOING)?;
    loop {
        let response = tokio::select! {
            response = events.next() => response.doing(DOING)?,
            () = passed(args.until), if events.cursor() >= newest => return Ok(0),
        };
        let Some(event) = &response.event else {
            show(session, &response).await;
            continue;
        };
        let time = event.time.as_ref().and_then(quantity::system_time);
        let is_within = time.is_none_or(|time| {
            args.since.is_none_or(|since| since <= time) && args.until.is_none_or(|until| time <= until)
        });
        let is_selected = container_id.is_empty() || event.container_id == container_id;
        if is_within && is_selected && filter::event_passes(&filters, event) {
            show(session, &response).await;
        }
        if event.cursor >= newest && has_passed(args.until) {
            return Ok(0);
        }
    }
}

/// Returns true if a time is set and in the past.
fn has_passed(until: Option<SystemTime>) -> bool {
    until.is_some_and(|until| until <= SystemTime::now())
}

/// Waits until the time has passed; waits forever without a time.
async fn passed(until: Option<SystemTime>) {
    let Some(until) = until else { return std::future::pending().await };
    // The clock may be adjusted during the wait.
    while let Ok(left) = until.duration_since(SystemTime::now()) {
        tokio::time::sleep(left.min(CLOCK_INTERVAL)).await;
    }
}

async fn show(session: &Session, response: &WatchEventsResponse) {
    if session.json {
        session.output.text(to_line(&json::Event::from(response))).await;
        return;
    }
    if response.gap {
        session.output.note(
            "some events before this one are missing: they are no longer stored, or were lost when executord was killed",
        );
    }
    if let Some(event) = &response.event {
        session.output.text(human::event(event, session.style)).await;
    }
}
