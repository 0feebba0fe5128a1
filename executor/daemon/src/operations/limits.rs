//! UpdateLimits: replaces limits of a running container.
//!
//! Limits are validated here and, by the same code, in the shim, which applies and records them. Capacity for the
//! larger of the old and the new limits is reserved first. After the shim's response the container holds the capacity
//! of the limits in force.

use std::sync::Arc;

use executor_core::protocol::{ShimCall, UpdateLimits};
use executor_core::validate::{Violation, ViolationReason, validate_limits};
use executor_proto::v1;

use crate::api_error::{ApiError, Kind};
use crate::model::container::Presence;
use crate::model::container::link::shim_is_gone;
use crate::model::status::ContainerStatus;
use crate::node::Node;
use crate::operations::rotate::{REPORT_TIMEOUT, running};

/// Replaces limits of a container.
///
/// # Errors
/// Returns the errors that the interface lists for UpdateLimits. In that case the limits are unchanged, except after
/// UNAVAILABLE.
pub(crate) async fn update(
    node: &Arc<Node>,
    request: v1::UpdateLimitsRequest,
) -> Result<Arc<ContainerStatus>, ApiError> {
    let shared = Arc::clone(node);
    node.run_detached(async move { replace(&shared, &request).await }).await
}

async fn replace(node: &Node, request: &v1::UpdateLimitsRequest) -> Result<Arc<ContainerStatus>, ApiError> {
    let handle = node.find(&request.id)?;
    let _turn = handle.updating.lock().await;
    let record = running(node, &handle, "its limits can be replaced")?;
    let limits = request.limits.clone().unwrap_or_default();
    let mut violations = fixed(&limits);
    let update = UpdateLimits {
        memory_bytes: limits.memory_bytes,
        pids: limits.pids,
        cpu_millis: limits.cpu_millis,
        cpu_weight: limits.cpu_weight,
        io_weight: limits.io_weight,
        swap_bytes: limits.swap_bytes,
        memory_reservation_bytes: limits.memory_reservation_bytes,
        unlimited_memory: limits.unlimited_memory,
        unlimited_pids: limits.unlimited_pids,
        cpu_period_us: limits.cpu_period_us,
        cpu_quota_us: limits.cpu_quota_us,
        cpu_shares: limits.cpu_shares,
        hugepage_bytes: limits.hugepage_bytes.into_iter().collect(),
        unified: limits.unified.into_iter().collect(),
        cpus: limits.cpuset_cpus,
        memory_nodes: limits.cpuset_mems,
    };
    // If the request has only limits that cannot change, report these limits, and not that the request is empty.
    let is_checked = violations.is_empty() || update != UpdateLimits::default();
    let validated = is_checked.then(|| validate_limits(&update, &record.plan, &node.config.policy));
    let plan = match validated {
        Some(Ok(plan)) if violations.is_empty() => plan,
        validated => {
            violations.extend(validated.and_then(Result::err).unwrap_or_default());
            return Err(ApiError::invalid(violations));
        }
    };
    let gone = || ApiError::no_container(handle.id().as_str());
    let facts = handle.facts().ok_or_else(gone)?;
    if (&plan.limits, &plan.host_options) == (&record.plan.limits, &record.plan.host_options) {
        return Ok(facts);
    }
    let link = handle.shim().ok_or_else(|| shim_is_gone(handle.id()))?;
    node.registry
        .reserve_update(&facts, &plan.limits)
        .map_err(|exhausted| ApiError::new(Kind::Exhausted, exhausted.to_string()))?;
    let answer = link.call(ShimCall::UpdateLimits(update)).await;
    if let Err(problem) = answer {
        // If the response was lost but the shim applied the limits, the shim reports them, and the capacity is updated.
        handle.facts().iter().for_each(|facts| node.registry.hold(facts));
        return Err(problem.map_or_else(
            || handle.response_lost("check limits_generation to see whether the limits were replaced"),
            ApiError::from,
        ));
    }
    let mut watch = handle.watch();
    let base = record.limits_generation;
    let news =
        watch.wait_for(|presence| !matches!(presence, Presence::Present(facts) if facts.limits_generation <= base));
    let _ = tokio::time::timeout(REPORT_TIMEOUT, news).await;
    handle.facts().ok_or_else(gone)
}

/// Returns a violation if the request has a disk limit, which cannot change while the container runs.
fn fixed(limits: &v1::Limits) -> Vec<Violation> {
    let why = ViolationReason::Unsuitable.because("cannot be changed while the container runs");
    if limits.disk_bytes == 0 { Vec::new() } else { vec![Violation::new("limits.disk_bytes", why)] }
}
