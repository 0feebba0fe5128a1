//! ReopenLog: the shim reopens the log file of a container (`RunRequest.log_file`).

use std::sync::Arc;

use executor_core::lifecycle::State;
use executor_core::protocol::{ReopenLog, ShimCall};

use crate::api_error::{ApiError, Kind};
use crate::model::container::link::shim_is_gone;
use crate::model::status::ContainerStatus;
use crate::node::Node;

/// Reopens the log file of a container (`RunRequest.log_file`).
///
/// # Errors
/// Returns the errors that the interface lists for ReopenLog.
pub(crate) async fn reopen(node: &Arc<Node>, id: &str) -> Result<Arc<ContainerStatus>, ApiError> {
    let handle = node.find(id)?;
    let facts = handle.facts().ok_or_else(|| ApiError::no_container(id))?;
    // Another program may rotate the file during a long grace period.
    if !matches!(facts.state, State::Running | State::Stopping) {
        let why = format!(
            "container {} is {}: its log file can be reopened only while it runs",
            handle.id(),
            facts.state.name()
        );
        return Err(ApiError::new(Kind::Precondition, why));
    }
    let link = handle.shim().ok_or_else(|| shim_is_gone(handle.id()))?;
    let lost = || handle.response_lost("the log file may have been reopened; try again");
    let answer = link.call(ShimCall::ReopenLog(ReopenLog {})).await;
    answer.map_err(|problem| problem.map_or_else(lost, ApiError::from))?;
    Ok(facts)
}
