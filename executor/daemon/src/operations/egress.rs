//! UpdateEgress: replaces the rules for the connections that a running container may open.
//!
//! The rules are validated here and, by the same code, in the shim, which applies and records them. Updates of a
//! container run one at a time, and an update that has started continues even if its client disconnects.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use executor_core::protocol::{ShimCall, UpdateEgress};
use executor_core::update::EgressUpdate;
use executor_core::validate::validate_egress;
use executor_proto::v1;

use crate::api_error::{ApiError, Kind};
use crate::ipc::memfiles;
use crate::model::container::Presence;
use crate::model::container::link::shim_is_gone;
use crate::model::status::ContainerStatus;
use crate::node::Node;
use crate::operations::rotate::{REPORT_TIMEOUT, running};
use crate::requests::draft;

/// Replaces the egress rules of a container.
///
/// # Errors
/// Returns the errors that the interface lists for UpdateEgress. In that case the rules are unchanged, except after
/// UNAVAILABLE.
pub(crate) async fn update(
    node: &Arc<Node>,
    request: v1::UpdateEgressRequest,
) -> Result<Arc<ContainerStatus>, ApiError> {
    let shared = Arc::clone(node);
    node.run_detached(async move { execute(&shared, &request).await }).await
}

async fn execute(node: &Node, request: &v1::UpdateEgressRequest) -> Result<Arc<ContainerStatus>, ApiError> {
    let handle = node.find(&request.id)?;
    let _turn = handle.updating.lock().await;
    let record = running(node, &handle, "its egress can be replaced")?;
    let mut violations = Vec::new();
    let update =
        EgressUpdate { egress: request.egress, rules: draft::egress_rules(&request.egress_rules, &mut violations) };
    violations.extend(validate_egress(&update, &record.plan, &node.config.policy).err().unwrap_or_default());
    if !violations.is_empty() {
        return Err(ApiError::invalid(violations));
    }
    let link = handle.shim().ok_or_else(|| shim_is_gone(handle.id()))?;
    let file = memfiles::json("executor-egress", &update).map_err(|error| {
        let why = format!("no memory or descriptors for the new rules of container {}: {error}", handle.id());
        ApiError::new(Kind::Exhausted, why)
    })?;
    let answer = link.call_with_fds(ShimCall::UpdateEgress(UpdateEgress {}), &[file.as_fd()]).await;
    let lost = || handle.response_lost("check egress_generation to see whether the rules were replaced");
    answer.map_err(|reported| reported.map_or_else(lost, ApiError::from))?;
    let base = record.egress_generation;
    let mut watch = handle.watch();
    let news =
        watch.wait_for(|presence| !matches!(presence, Presence::Present(facts) if facts.egress_generation <= base));
    let _ = tokio::time::timeout(REPORT_TIMEOUT, news).await;
    handle.facts().ok_or_else(|| ApiError::no_container(handle.id().as_str()))
}
