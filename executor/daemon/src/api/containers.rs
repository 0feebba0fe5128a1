//! Implements the calls on existing containers: Get, List, Wait, Stop, Signal.

use std::sync::Arc;
use std::time::Duration;

use executor_core::ident::ContainerId;
use executor_core::lifecycle::State;
use executor_core::limits::SIGNAL_MAX;
use executor_core::plan::MAIN_PROCESS;
use executor_core::protocol::{ShimCall, Signal};
use executor_core::validate::{Violation, ViolationReason};
use executor_proto::v1;
use prost::Message as _;
use tokio::time::timeout;

use super::convert;
use crate::api_error::{ApiError, Kind};
use crate::model::container::Presence;
use crate::model::container::link::shim_is_gone;
use crate::model::reservation::Reservation;
use crate::model::status::ContainerStatus;
use crate::node::Node;
use crate::operations::members;
use crate::requests::draft;

/// Default page size, in containers.
const PAGE_DEFAULT: usize = 100;
/// Maximum page size, in containers.
const PAGE_MAX: usize = 1000;
/// Size at which a page ends early, in bytes. Clients reject messages of more than 4 MiB.
const PAGE_BYTES: usize = 2 << 20;

pub(super) fn get(node: &Node, id: &str) -> Result<v1::Container, ApiError> {
    if let Some(reservation) = node.find_reservation(id) {
        return Ok(convert::reserved_container(&reservation));
    }
    let facts = node.find(id)?.facts().ok_or_else(|| ApiError::no_container(id))?;
    Ok(convert::container(&facts))
}

pub(super) fn list(node: &Node, request: &v1::ListRequest) -> Result<v1::ListResponse, ApiError> {
    let filter = Filter::from_request(request)?;
    let after = match &*request.page_token {
        "" => None,
        token => Some(token.parse::<ContainerId>().map_err(|_| {
            let why = "unknown page token: use the next_page_token of an earlier page";
            ApiError::invalid_field("page_token", ViolationReason::InvalidFormat.because(why))
        })?),
    };
    let most = match request.page_size as usize {
        0 => PAGE_DEFAULT,
        size => size.min(PAGE_MAX),
    };
    let mut page = Page { page: v1::ListResponse::default(), bytes: 0, most };
    let reservations = node.registry.all_reservations().into_iter();
    let mut reservations = reservations
        .filter(|one| after.as_ref().is_none_or(|after| one.id > *after) && filter.takes_reservation(one))
        .peekable();
    node.registry.visit(after.as_ref(), |handle| {
        while let Some(before) = reservations.next_if(|one| one.id < *handle.id()) {
            if !page.add(|| convert::reserved_container(&before)) {
                return false;
            }
        }
        // Skip the reservation if it was claimed after the reservations were read.
        reservations.next_if(|one| one.id == *handle.id());
        let facts = handle.facts().filter(|facts| filter.takes(facts));
        facts.is_none_or(|facts| page.add(|| convert::container(&facts)))
    });
    let _ =
        page.page.next_page_token.is_empty() && reservations.all(|one| page.add(|| convert::reserved_container(&one)));
    Ok(page.page)
}

/// A page that is being filled.
struct Page {
    page: v1::ListResponse,
    bytes: usize,
    /// Maximum number of containers on the page.
    most: usize,
}

impl Page {
    /// Adds a container to the page. Returns false if the page is full; the next page then starts after the last
    /// container of this page.
    fn add(&mut self, container: impl FnOnce() -> v1::Container) -> bool {
        if self.page.containers.len() == self.most || self.bytes > PAGE_BYTES {
            self.page.next_page_token = self.page.containers.last().map(|last| last.id.clone()).unwrap_or_default();
            return false;
        }
        let container = container();
        self.bytes += container.encoded_len();
        self.page.containers.push(container);
        true
    }
}

/// Filter of a list request.
struct Filter<'a> {
    id_prefix: &'a str,
    states: Vec<v1::State>,
    labels: &'a std::collections::HashMap<String, String>,
    pod: &'a str,
}

impl<'a> Filter<'a> {
    fn from_request(request: &'a v1::ListRequest) -> Result<Self, ApiError> {
        let known = |(index, number): (usize, &i32)| match v1::State::try_from(*number) {
            Ok(state) if state != v1::State::Unspecified => Ok(state),
            _ => {
                let why = ViolationReason::UnknownValue.because(format!("is {number}, which is not a state"));
                Err(ApiError::invalid_field(format!("states[{index}]"), why))
            }
        };
        let states = request.states.iter().enumerate().map(known).collect::<Result<_, _>>()?;
        Ok(Self { id_prefix: &request.id_prefix, states, labels: &request.labels, pod: &request.pod })
    }

    fn takes_reservation(&self, reservation: &Reservation) -> bool {
        self.pod.is_empty()
            && self.labels.is_empty()
            && reservation.id.as_str().starts_with(self.id_prefix)
            && (self.states.is_empty() || self.states.contains(&v1::State::Reserved))
    }

    fn takes(&self, facts: &ContainerStatus) -> bool {
        let state = self.states.is_empty() || self.states.contains(&convert::state(facts.state));
        let pod = facts.plan.member_of().map_or("", |pod| pod.as_str());
        !facts.plan.is_pod()
            && (self.pod.is_empty() || self.pod == pod)
            && facts.plan.id.as_str().starts_with(self.id_prefix)
            && state
            && self.labels.iter().all(|(name, value)| facts.plan.labels.get(name) == Some(value))
    }
}

pub(super) async fn wait(node: &Arc<Node>, id: &str) -> Result<v1::Container, ApiError> {
    let handle = node.find(id)?;
    tokio::select! {
        facts = handle.completed() => Ok(convert::container(&*facts?)),
        () = node.until_stopping() => Err(ApiError::stopping()),
    }
}

pub(super) async fn stop(node: &Arc<Node>, request: v1::StopRequest) -> Result<v1::Container, ApiError> {
    let grace = draft::duration("grace_period", request.grace_period.as_ref());
    let signal = i32::try_from(request.signal).ok().filter(|_| request.signal <= SIGNAL_MAX);
    let out_of_range = || {
        let why = format!("is {}; 1 to {SIGNAL_MAX} are allowed, or 0", request.signal);
        Violation::new("signal", ViolationReason::OutOfRange.because(why))
    };
    let (grace, signal) = match (grace, signal.ok_or_else(out_of_range)) {
        (Ok(grace), Ok(signal)) => (grace, signal),
        (grace, signal) => return Err(ApiError::invalid(grace.err().into_iter().chain(signal.err()).collect())),
    };
    let handle = node.find(&request.id)?;
    let facts = handle.facts().ok_or_else(|| ApiError::no_container(&request.id))?;
    // In `wiping`, the shim may still capture outputs, and clients may read the last output. A stop shortens both.
    if facts.state <= State::Wiping {
        handle.settled_in_time().await?;
        members::request_stop(&handle, (grace.unwrap_or(facts.plan.grace), signal)).await?;
        // Wait up to 1 s for the state `stopping` or a later state, which the shim reports on the same connection.
        let mut watch = handle.watch();
        let news = watch.wait_for(|presence| match presence {
            Presence::Present(facts) => facts.state >= State::Stopping || handle.shim().is_none(),
            _ => true,
        });
        let _ = timeout(Duration::from_secs(1), news).await;
    }
    get(node, &request.id)
}

pub(super) async fn signal(node: &Arc<Node>, request: v1::SignalRequest) -> Result<(), ApiError> {
    let signal = i32::try_from(request.signal).ok().filter(|number| (1..=64).contains(number));
    let signal = signal.ok_or_else(|| {
        let why = format!("is {}; 1 to 64 are allowed", request.signal);
        ApiError::invalid_field("signal", ViolationReason::OutOfRange.because(why))
    })?;
    let process_id = match request.process_id {
        empty if empty.is_empty() => MAIN_PROCESS.to_owned(),
        id => id,
    };
    let handle = node.find(&request.id)?;
    let facts = handle.facts().ok_or_else(|| ApiError::no_container(&request.id))?;
    // In an action tree `main` means every running process.
    let is_all = facts.plan.actions.is_some() && process_id == MAIN_PROCESS;
    if !is_all && !facts.plan.processes.iter().any(|process| process.id == process_id) {
        let shown: String = process_id.chars().take(80).collect();
        let first = facts.plan.processes.first().map_or(MAIN_PROCESS, |process| &process.id);
        let known = match facts.plan.processes.len() {
            0 | 1 => format!("the only process is `{first}`"),
            count => format!("the container has {count} processes, such as `{first}`"),
        };
        let why = format!("container {} has no process {shown:?}; {known}", handle.id());
        return Err(ApiError::new(Kind::NotFound, why));
    }
    if !matches!(facts.state, State::Running | State::Stopping) {
        return Err(ApiError::new(
            Kind::Precondition,
            format!(
                "container {} is {}: a signal can be sent to a running process only",
                handle.id(),
                facts.state.name()
            ),
        ));
    }
    let gone = || shim_is_gone(handle.id());
    let link = handle.shim().ok_or_else(gone)?;
    link.call(ShimCall::Signal(Signal { process_id, signal })).await.map_err(|reported| reported.unwrap_or_else(gone))
}
