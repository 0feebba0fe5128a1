//! Stops containers: single containers, all members of a pod, and the members of stopped pods.

use std::sync::Arc;
use std::time::Duration;

use executor_core::backoff::Backoff;
use executor_core::ident::ContainerId;
use executor_core::protocol::{ShimCall, Stop};
use tokio::task::JoinSet;

use crate::api_error::ApiError;
use crate::model::container::Handle;
use crate::node::Node;

/// Pauses between attempts to stop a container whose shim connection broke.
const STOP_RETRY: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

/// Stops containers in parallel, and waits until they are completed. Without `grace`, the grace period of each
/// container applies.
///
/// # Errors
/// Returns the first error if containers could not be stopped. The other containers are stopped nevertheless.
pub(crate) async fn stop_all(members: Vec<Arc<Handle>>, grace: Option<Duration>) -> Result<(), ApiError> {
    let mut stops = JoinSet::new();
    for member in members {
        stops.spawn(async move { stop(&member, grace).await });
    }
    let mut first = Ok(());
    while let Some(stopped) = stops.join_next().await {
        first = first.and(stopped.map_err(ApiError::from).flatten());
    }
    first
}

/// Stops a container and waits until it is completed.
///
/// # Errors
/// Returns an error if the shim refuses, or the container does not exit in time.
pub(crate) async fn stop(handle: &Handle, grace: Option<Duration>) -> Result<(), ApiError> {
    let Some(facts) = handle.facts() else { return Ok(()) };
    request_stop(handle, (grace.unwrap_or(facts.plan.grace), 0)).await?;
    match handle.ended().await {
        Err(problem) if !handle.is_over() => Err(problem),
        // A container that was refused in the meantime has also completed.
        _ => Ok(()),
    }
}

/// Requests the stop of a container, with a grace period and a signal (0 selects the container's own signal). Waits
/// until the shim is connected, and repeats the request if the connection breaks. Does nothing if the container has
/// exited.
///
/// # Errors
/// Returns an error if the shim refuses.
pub(crate) async fn request_stop(handle: &Handle, (grace, signal): (Duration, i32)) -> Result<(), ApiError> {
    let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    let mut again = STOP_RETRY;
    loop {
        handle.settled().await;
        if handle.is_over() {
            return Ok(());
        }
        let reported = match handle.shim() {
            Some(link) => link.call(ShimCall::Stop(Stop { signal, grace_ms })).await,
            None => Err(None),
        };
        match reported {
            Ok(()) => return Ok(()),
            Err(Some(problem)) => return Err(problem),
            Err(None) => tokio::time::sleep(again.pause()).await,
        }
    }
}

/// Stops the members of a stopped pod.
pub(crate) async fn stop_orphaned(node: Arc<Node>, pod: ContainerId) {
    let members: Vec<Arc<Handle>> =
        node.registry.members(&pod).into_iter().filter(|member| !member.is_over()).collect();
    for member in &members {
        tracing::info!(container = %member.id(), %pod, "stopping the container: its pod has completed");
    }
    if let Err(problem) = stop_all(members, None).await {
        tracing::error!(%pod, "cannot stop a member of the completed pod: {problem}");
    }
}

/// Stops the members of pods that stopped while no daemon was running.
pub(crate) fn stop_all_orphaned(node: &Arc<Node>) {
    let mut ended = std::collections::BTreeSet::new();
    for member in node.registry.all().into_iter().filter(|handle| !handle.is_over()) {
        let Some(facts) = member.facts() else { continue };
        let Some(pod) = facts.plan.member_of() else { continue };
        if node.registry.get(pod).is_none_or(|pod| !pod.is_pod() || pod.is_over()) {
            ended.insert(pod.clone());
        }
    }
    for pod in ended {
        tokio::spawn(stop_orphaned(Arc::clone(node), pod));
    }
}
