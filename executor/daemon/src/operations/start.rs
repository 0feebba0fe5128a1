//! Start: the shim starts the process of a held container.

use std::sync::Arc;

use executor_core::lifecycle::State;
use executor_core::protocol::{self, ShimCall};

use crate::api_error::{ApiError, Kind};
use crate::model::container::link::shim_is_gone;
use crate::model::status::ContainerStatus;
use crate::node::Node;

/// Starts the process of a held container, and waits until it has started or can no longer start.
///
/// # Errors
/// Returns the errors that the interface lists for Start.
pub(crate) async fn start(node: &Arc<Node>, id: &str) -> Result<Arc<ContainerStatus>, ApiError> {
    let handle = node.find(id)?;
    let _turn = handle.updating.lock().await;
    // The container may still be in creation.
    let facts = handle.created().await?;
    if !facts.plan.hold {
        let why = format!("container {id} was run without `hold`: its process was started at creation");
        return Err(ApiError::new(Kind::Precondition, why));
    }
    if facts.is_held() {
        if let Some(pod) = facts.plan.member_of()
            && node.registry.get(pod).and_then(|pod| pod.state()).is_none_or(|state| state >= State::Stopping)
        {
            return Err(ApiError::pod_unavailable(pod.as_str()));
        }
        handle.settled_in_time().await?; // after a restart of this daemon, the shim may not be connected yet
        let link = handle.shim().ok_or_else(|| shim_is_gone(handle.id()))?;
        let lost = || handle.response_lost("check the container's state to see whether it was started");
        let answer = link.call(ShimCall::Start(protocol::Start {})).await;
        answer.map_err(|problem| problem.map_or_else(lost, ApiError::from))?;
    }
    let facts = handle.started().await?;
    if facts.was_not_started() {
        let why = format!("container {id} is {}: the container's process was never started", facts.state.name());
        return Err(ApiError::new(Kind::Precondition, why));
    }
    Ok(facts)
}
