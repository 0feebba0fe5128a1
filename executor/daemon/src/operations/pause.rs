//! Pause and Resume: the shim pauses or resumes all processes of a container.

use std::sync::Arc;

use executor_core::protocol::{self, ShimCall};

use crate::api_error::ApiError;
use crate::model::container::Presence;
use crate::model::container::link::shim_is_gone;
use crate::model::status::ContainerStatus;
use crate::node::Node;
use crate::operations::rotate::{REPORT_TIMEOUT, running};

/// Pauses a container.
///
/// # Errors
/// Returns the errors that the interface lists for Pause.
pub(crate) async fn pause(node: &Arc<Node>, id: &str) -> Result<Arc<ContainerStatus>, ApiError> {
    change(node, id, true).await
}

/// Resumes a paused container.
///
/// # Errors
/// Returns the errors that the interface lists for Resume.
pub(crate) async fn resume(node: &Arc<Node>, id: &str) -> Result<Arc<ContainerStatus>, ApiError> {
    change(node, id, false).await
}

async fn change(node: &Arc<Node>, id: &str, paused: bool) -> Result<Arc<ContainerStatus>, ApiError> {
    let handle = node.find(id)?;
    let _turn = handle.updating.lock().await;
    running(node, &handle, "it can be paused or resumed")?;
    let link = handle.shim().ok_or_else(|| shim_is_gone(handle.id()))?;
    let call = if paused { ShimCall::Pause(protocol::Pause {}) } else { ShimCall::Resume(protocol::Resume {}) };
    let answer = link.call(call).await;
    let lost = || handle.response_lost("check the field `paused` to see the result");
    answer.map_err(|problem| problem.map_or_else(lost, ApiError::from))?;
    let mut watch = handle.watch();
    let reported = |presence: &Presence| !matches!(presence, Presence::Present(facts) if facts.paused != paused);
    let _ = tokio::time::timeout(REPORT_TIMEOUT, watch.wait_for(reported)).await;
    handle.facts().ok_or_else(|| ApiError::no_container(id))
}
