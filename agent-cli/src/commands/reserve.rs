//! `reserve` and `release`: reserves capacity for a later container, and releases a reservation.

use std::time::{Duration, SystemTime};

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::text::plain;
use executor_cli_kit::units;
use executor_cli_kit::view::quantity;
use executor_client::v1::Resources;

use crate::batch;
use crate::view::json;

#[derive(Debug, Args)]
pub(crate) struct ReserveArgs {
    /// Memory, as for run --memory [default: executord's limit for containers without a limit]
    #[arg(long, short, value_name = "SIZE", value_parser = units::size)]
    memory: Option<u64>,
    /// Processes and threads [default: executord's]
    #[arg(long, visible_alias = "pids-limit", value_name = "N", value_parser = units::count)]
    pids: Option<u64>,
    /// Disk: the sum of the container's limit and its empty volumes [default: executord's]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    disk: Option<u64>,
    /// Time until the reservation expires, 1s to 1h [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = units::grace)]
    ttl: Option<Duration>,
    /// Id of the later container [default: a new UUID]
    #[arg(value_name = "ID")]
    id: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    /// Ids of the reservations
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

pub(super) async fn reserve(session: &Session, args: ReserveArgs) -> Result<u8, Failure> {
    let ReserveArgs { memory, pids, disk, ttl, id } = args;
    let resources =
        Resources { memory_bytes: memory.unwrap_or(0), pids: pids.unwrap_or(0), disk_bytes: disk.unwrap_or(0) };
    // Generate the id here, so that the request can be repeated.
    let id = id.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
    let (reservation, created) = session.client.cell().reserve(&id, resources, ttl).await.doing("reserve")?;
    if !created && !session.json {
        let left = quantity::left(reservation.expires_at.as_ref(), SystemTime::now());
        session.output.note(format!("{} was already reserved; it now expires {left}", plain(&reservation.id)));
    }
    let document = json::Reservation::from(&reservation);
    session.print(&document, || plain(&reservation.id) + "\n").await;
    Ok(0)
}

pub(super) async fn release(session: &Session, args: ReleaseArgs) -> Result<u8, Failure> {
    let (mut done, mut failures) = (Vec::with_capacity(args.ids.len()), Vec::new());
    for id in args.ids {
        let released = session.client.cell().release(&id).await.doing(&format!("release {id}"));
        let error = released.as_ref().err().map(Failure::describe);
        if error.is_none() && !session.json {
            session.output.text(plain(&id) + "\n").await;
        }
        done.push(json::Released { id, released: error.is_none(), error });
        failures.extend(released.err());
    }
    batch::finish(session, &done, failures).await
}
