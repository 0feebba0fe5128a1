//! Launches a container or a pod: reserves its id and its capacity together, and starts the task that drives it.

use std::sync::Arc;

use executor_core::lifecycle::State;
use executor_core::plan::Plan;
use executor_core::validate::{Violation, ViolationReason};
use executor_providers::WorkloadLogins;
use executor_secrets::TagKey;

use crate::actor::forwarding;
use crate::actor::{self, LaunchPayload};
use crate::api_error::{ApiError, Kind};
use crate::launcher::Session;
use crate::model::container::Handle;
use crate::model::identity::IdentityRecord;
use crate::model::reservation::Reservation;
use crate::model::sources::SourceRecord;
use crate::model::status::{ContainerStatus, TraceContext};
use crate::node::Node;
use crate::operations::reserve;
use crate::store::registry::{Admission, Terms};

/// Properties of a container that come from its request, in addition to the plan.
#[derive(Default)]
pub(super) struct RequestOrigin {
    pub(super) sources: Vec<SourceRecord>,
    pub(super) logins: WorkloadLogins,
    pub(super) identity: Option<IdentityRecord>,
    pub(super) trace: Option<TraceContext>,
    pub(super) needs_reservation: bool,
}

/// Reserves id and capacity for a container, and starts the task that drives it.
pub(super) async fn launch(
    node: &Arc<Node>,
    plan: Plan,
    origin: RequestOrigin,
    tag: &str,
    session: Arc<Session>,
    payload: LaunchPayload,
) -> Result<(Arc<Handle>, bool), ApiError> {
    let guard = WipeGuard(Some(&payload));
    let pod = plan.member_of().map(ToString::to_string).unwrap_or_default();
    let RequestOrigin { sources, logins, identity, trace, needs_reservation } = origin;
    let facts = ContainerStatus {
        sources,
        identity,
        trace,
        ..ContainerStatus::admitted(plan, tag.to_owned(), crate::now(), node.boot_id.clone())
    };
    let id = facts.plan.id.clone();
    let taken = |reservation: &Reservation| node.ledger.remove_reservation(&reservation.id);
    let terms = Terms { needs_reservation, kept_max: node.config.policy.keep_until_deleted_max };
    match node.registry.admit_when_removed(&facts, terms, taken).await {
        Ok(Admission::New(handle)) => {
            guard.disarm();
            handle.logins.merge(&logins);
            handle.set_shim(Some(Arc::clone(&payload.ours)));
            forwarding::start(node, &handle, &facts, false);
            tokio::spawn(actor::launch(Arc::clone(node), Arc::clone(&handle), facts, session, payload));
            Ok((handle, true))
        }
        Ok(Admission::Used(handle)) => same_container(handle, tag),
        Ok(Admission::PodUnavailable) => Err(ApiError::pod_unavailable(&pod)),
        Ok(Admission::Closed) => Err(node.check_open().err().unwrap_or_else(ApiError::stopping)),
        Ok(Admission::TooManyKept(kept)) => {
            let why = format!(
                "{kept} containers and pods have `keep_until_deleted`, as many as policy.keep_until_deleted_max allows: \
                 delete a completed one"
            );
            let violation = Violation::new("keep_until_deleted", ViolationReason::Insufficient.because(why));
            Err(ApiError { kind: Kind::Exhausted, ..ApiError::invalid(vec![violation]) })
        }
        Ok(Admission::NotReserved) => Err(reserve::missing(node, &id)),
        Ok(Admission::BeyondReservation(short)) => {
            let why = format!("container {id} needs more resources than its reservation has: {short}");
            Err(ApiError::new(Kind::Precondition, why))
        }
        Err(exhausted) => Err(ApiError::new(Kind::Exhausted, exhausted.to_string())),
    }
}

/// Overwrites the payload of a container that is not admitted, after an error or when the caller disconnects.
struct WipeGuard<'a>(Option<&'a LaunchPayload>);

impl WipeGuard<'_> {
    /// Keeps the payload, which now belongs to the container's task.
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for WipeGuard<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|payload| payload.wipe());
    }
}

/// Returns the key of request digests, which arrives with the launcher's first greeting.
pub(super) async fn tag_key(node: &Node) -> Result<TagKey, ApiError> {
    node.launcher.wait_for_first_attempt().await;
    node.launcher.tag_key().ok_or_else(|| {
        let none = || ApiError::new(Kind::Unavailable, "the launcher sent an invalid key for request digests");
        node.launcher.session().err().unwrap_or_else(none)
    })
}

/// Assigns a random id to a request without one.
pub(super) fn fill_in_id(id: &mut String) {
    if id.is_empty() {
        *id = uuid::Uuid::new_v4().to_string();
    }
}

/// Returns the container that already has the id, if the same request created it.
pub(super) fn same_container(handle: Arc<Handle>, tag: &str) -> Result<(Arc<Handle>, bool), ApiError> {
    if handle.request_tag() == tag {
        return Ok((handle, false));
    }
    let state = handle.state().map_or("deleted", State::name);
    Err(ApiError::new(
        Kind::Exists,
        format!("container {} ({state}) was created by a different request with the same id", handle.id()),
    ))
}
