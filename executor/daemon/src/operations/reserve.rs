//! Creates, releases, expires and restores reservations.

use std::sync::Arc;
use std::time::Duration;

use executor_core::capacity::Amount;
use executor_core::ident::ContainerId;
use executor_core::limits::{DISK_MIN, MEMORY_MIN, PIDS_MAX, PIDS_MIN, SIZE_MAX};
use executor_core::time::Timestamp;
use executor_core::validate::ViolationReason::{InvalidFormat, OutOfRange};
use executor_core::validate::{Policy, Violation};
use executor_proto::v1;
use tokio::time::Instant;

use crate::access::Client;
use crate::access::rules::Requester;
use crate::api_error::{ApiError, Kind};
use crate::model::events::EventKind;
use crate::model::reservation::Reservation;
use crate::node::Node;
use crate::requests::draft;
use crate::store::registry::Reserving;

/// Default lifetime of a reservation.
const TTL_DEFAULT: Duration = Duration::from_secs(60);
/// Minimum lifetime of a reservation.
const TTL_MIN: Duration = Duration::from_secs(1);
/// Maximum lifetime of a reservation.
const TTL_MAX: Duration = Duration::from_secs(3600);

/// Creates or renews a reservation. Returns the reservation, and true if it is new. The reservation counts against the
/// quota of the client that requested it last.
///
/// # Errors
/// Returns the errors that the interface lists for Reserve.
pub(crate) async fn reserve(
    node: &Arc<Node>,
    request: v1::ReserveRequest,
    client: &Client,
) -> Result<(Reservation, bool), ApiError> {
    let id = if request.id.is_empty() { uuid::Uuid::new_v4().to_string() } else { request.id };
    let mut violations = Vec::new();
    let ttl = draft::duration("ttl", request.ttl.as_ref());
    violations.extend(ttl.as_ref().err().cloned());
    let ttl = ttl.ok().flatten().unwrap_or(TTL_DEFAULT);
    if !(TTL_MIN..=TTL_MAX).contains(&ttl) {
        let why = format!("is {ttl:?}; {TTL_MIN:?} to {TTL_MAX:?} is allowed");
        violations.push(Violation::new("ttl", OutOfRange.because(why)));
    }
    let id = id.parse::<ContainerId>();
    violations.extend(id.as_ref().err().map(|bad| Violation::new("id", InvalidFormat.because(bad.to_string()))));
    let amount = amount(request.resources.unwrap_or_default(), &node.config.policy, &mut violations);
    let (true, Ok(id)) = (violations.is_empty(), id) else { return Err(ApiError::invalid(violations)) };
    Node::check_id(&id)?;
    // The id may belong to a container that an earlier daemon launched just before it exited.
    node.until_found().await;
    node.check_room()?;
    let now = crate::now();
    let owner = Requester::new(client).owner();
    let asked = Reservation { id, amount, created_at: now, expires_at: after(now, ttl), owner };
    let keep = |kept: &Reservation, is_new: bool| {
        if is_new {
            node.events.append(&kept.id, EventKind::ReservationMade, None, now);
        }
        node.ledger.put_reservation(Arc::new(kept.clone()));
    };
    match node.registry.reserve(asked, ttl, keep).await {
        Ok(Reserving::Made(made)) => {
            tracing::info!(reservation = %made.id, ttl_ms = ttl.as_millis(), "reserved");
            Ok((made, true))
        }
        Ok(Reserving::Renewed(renewed)) => Ok((renewed, false)),
        Ok(Reserving::Container(id)) => {
            Err(ApiError::new(Kind::Exists, format!("the id {id} is already used by a container or a pod")))
        }
        Ok(Reserving::Closed) => Err(node.check_open().err().unwrap_or_else(ApiError::stopping)),
        Ok(Reserving::Different(id)) => {
            Err(ApiError::new(Kind::Exists, format!("the reservation {id} already exists with different resources")))
        }
        Ok(Reserving::BeyondShare(short)) => {
            let percent = node.config.reserved_percent;
            let why = format!(
                "the reservations of one caller may use at most {percent} % of the capacity (capacity.reserved_percent): {short}"
            );
            Err(ApiError::new(Kind::Exhausted, why))
        }
        Err(exhausted) => Err(ApiError::new(Kind::Exhausted, exhausted.to_string())),
    }
}

fn after(now: Timestamp, ttl: Duration) -> Timestamp {
    Timestamp(now.0.saturating_add(u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX)))
}

/// Converts requested resources. Applies the default limits of containers. Records a violation for each value outside
/// its bounds.
fn amount(asked: v1::Resources, policy: &Policy, violations: &mut Vec<Violation>) -> Amount {
    let or = |value: u64, default: u64| if value == 0 { default } else { value };
    let amount = Amount {
        memory_bytes: or(asked.memory_bytes, policy.default_memory_bytes),
        pids: or(asked.pids, policy.default_pids),
        containers: 1,
        disk_bytes: or(asked.disk_bytes, policy.default_disk_bytes),
    };
    let mut range = |field: &str, value: u64, least: u64, most: u64| {
        if !(least..=most).contains(&value) {
            let why = OutOfRange.because(format!("is {value}; {least} to {most} is allowed"));
            violations.push(Violation::new(field, why));
        }
    };
    range("resources.memory_bytes", amount.memory_bytes, MEMORY_MIN, SIZE_MAX);
    range("resources.pids", amount.pids, PIDS_MIN, PIDS_MAX);
    if amount.disk_bytes != 0 {
        range("resources.disk_bytes", amount.disk_bytes, DISK_MIN, SIZE_MAX);
    }
    amount
}

/// Releases a reservation.
///
/// # Errors
/// Returns an error if the id is malformed, or there is no such reservation.
pub(crate) fn release(node: &Node, id: &str) -> Result<(), ApiError> {
    let id: ContainerId =
        id.parse().map_err(|bad| ApiError::invalid_field("id", InvalidFormat.because(format!("{bad}"))))?;
    match node.registry.release_reservation(&id, |_| ended(node, &id, EventKind::ReservationReleased)) {
        true => Ok(()),
        false => Err(ApiError::not_found("id", format!("there is no reservation {:?}", id.as_str()))),
    }
}

pub(crate) fn release_all(node: &Node) {
    for Reservation { id, .. } in node.registry.all_reservations() {
        node.registry.release_reservation(&id, |_| ended(node, &id, EventKind::ReservationReleased));
    }
}

/// Logs the end of a reservation, appends the event, and removes the reservation from the ledger.
fn ended(node: &Node, id: &ContainerId, kind: EventKind) {
    tracing::info!(reservation = %id, end = ?kind, "reservation ended");
    node.events.append(id, kind, None, crate::now());
    node.ledger.remove_reservation(id);
}

/// Restores the reservations of an earlier daemon. The reservations' lifetimes continued while no daemon was running.
/// Called after the ledger's containers are registered.
pub(crate) fn restore(node: &Node, reservations: Vec<Reservation>) {
    for reservation in reservations {
        let left = reservation.expires_at.since(crate::now()).min(TTL_MAX);
        let id = reservation.id.clone();
        if node.registry.get(&id).is_some() {
            node.ledger.remove_reservation(&id); // a container used the reservation just before the daemon was killed
        } else if left.is_zero() {
            ended(node, &id, EventKind::ReservationExpired);
        } else {
            node.registry.restore(reservation, left);
        }
    }
}

/// Expires reservations until the daemon stops.
pub(crate) async fn run_expiry(node: Arc<Node>) {
    let mut changes = node.registry.watch_reservations();
    loop {
        changes.mark_unchanged();
        match node.registry.next_expiry() {
            Some(due) if due <= Instant::now() => {
                node.registry.expire(crate::now(), |id| ended(&node, id, EventKind::ReservationExpired));
            }
            Some(due) => tokio::select! {
                () = tokio::time::sleep_until(due) => {}
                _ = changes.changed() => {}
            },
            // `changed` cannot fail: the node owns the sender, and this task holds the node.
            None => drop(changes.changed().await),
        }
    }
}

/// Claim on a reservation by a Run in progress. The reservation does not expire until this is dropped.
pub(crate) struct Claim {
    node: Arc<Node>,
    id: ContainerId,
}

impl Claim {
    /// Claims the reservation of an id; returns `None` if there is no reservation.
    ///
    /// # Errors
    /// Returns an error if there is no reservation and `required` is true.
    pub(crate) fn new(node: &Arc<Node>, id: &ContainerId, required: bool) -> Result<Option<Self>, ApiError> {
        match node.registry.claim(id) {
            true => Ok(Some(Self { node: Arc::clone(node), id: id.clone() })),
            false if required => Err(missing(node, id)),
            false => Ok(None),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.node.registry.unclaim(&self.id);
    }
}

/// Returns the error of a Run that requires a missing or expired reservation.
pub(crate) fn missing(node: &Node, id: &ContainerId) -> ApiError {
    let why = match node.registry.expired_at(id) {
        Some(at) => format!("the reservation {id} expired at {}", at.rfc3339()),
        None => {
            format!("there is no reservation {id}: it was never created, or it was used, released or expired")
        }
    };
    ApiError::new(Kind::Precondition, why)
}
