//! Creates, stops and deletes pods, each together with its members.
//!
//! A pod is a container without a program (its holder). Like any other container it has a shim, a record and a ledger
//! entry, so it outlives executord and the launcher, and its exit is recorded. Operations on its members are in this
//! module and in `members`.

use std::sync::Arc;
use std::time::Duration;

use executor_core::ident::ContainerId;
use executor_core::plan::Plan;
use executor_proto::v1;

use super::launch::{RequestOrigin, fill_in_id, launch, same_container, tag_key};
use super::plan::validated;
use crate::actor::LaunchPayload;
use crate::api_error::{ApiError, Kind};
use crate::model::container::Handle;
use crate::model::status::ContainerStatus;
use crate::node::Node;
use crate::operations::delete;
use crate::operations::members;
use crate::requests::{digest, draft};

/// Maximum number of members that an error names.
const NAMES_SHOWN: usize = 20;

/// Creates a pod. Returns the pod, and true if this call created it.
///
/// # Errors
/// Returns the errors that the interface lists for CreatePod. After an error the pod leaves no resources, and the id is
/// free.
pub(crate) async fn create(
    node: &Arc<Node>,
    request: v1::CreatePodRequest,
) -> Result<(Arc<ContainerStatus>, bool), ApiError> {
    node.until_found().await;
    let explain = |problem| node.launcher.explain(problem);
    let (handle, created) = admit(node, request).await.map_err(explain)?;
    let facts = tokio::select! {
        facts = handle.started() => facts.map_err(explain)?,
        () = node.until_stopping() => return Err(ApiError::stopping()),
    };
    Ok((facts, created))
}

/// Admits a pod, and starts the task that drives it.
async fn admit(node: &Arc<Node>, mut request: v1::CreatePodRequest) -> Result<(Arc<Handle>, bool), ApiError> {
    fill_in_id(&mut request.id);
    let plan = plan_of_pod(node, &request)?;
    Node::check_id(&plan.id)?;
    make_pod(node, plan, &request).await
}

/// Creates the pod of the self-test.
pub(crate) async fn create_for_self_test(
    node: &Arc<Node>,
    request: v1::CreatePodRequest,
) -> Result<(Arc<Handle>, bool), ApiError> {
    let plan = plan_of_pod(node, &request)?;
    make_pod(node, plan, &request).await
}

pub(super) fn plan_of_pod(node: &Node, request: &v1::CreatePodRequest) -> Result<Plan, ApiError> {
    let (draft, violations) = draft::pod(request);
    validated(None, &draft, violations, &node.config.policy)
}

async fn make_pod(
    node: &Arc<Node>,
    mut plan: Plan,
    request: &v1::CreatePodRequest,
) -> Result<(Arc<Handle>, bool), ApiError> {
    let tag = digest::pod_digest(&tag_key(node).await?, request);
    if let Some(handle) = node.registry.get(&plan.id) {
        return same_container(handle, &tag);
    }
    let session = node.launcher.session()?;
    node.check_room()?;
    plan.connectivity.name_server = node.names.open_for(&plan).await;
    let payload = LaunchPayload::for_pod(&plan).map_err(|error| {
        ApiError::new(Kind::Exhausted, format!("no memory or descriptors for the plan of pod {}: {error}", plan.id))
    })?;
    launch(node, plan, RequestOrigin::default(), &tag, session, payload).await
}

/// Stops a pod: first its members, with this grace period or their own, then the pod itself.
///
/// # Errors
/// Returns an error if a member could not be stopped. In that case the pod still exists, but accepts no new members.
pub(crate) async fn stop(
    node: &Arc<Node>,
    pod: Arc<Handle>,
    grace: Option<Duration>,
) -> Result<Arc<ContainerStatus>, ApiError> {
    // Use a task, so that a caller that disconnects does not leave a partially stopped pod.
    let task = tokio::spawn({
        let (node, pod) = (Arc::clone(node), Arc::clone(&pod));
        async move {
            let members = node.registry.close_pod(&pod, false).map_err(|living| still_runs(pod.id(), &living))?;
            members::stop_all(members, grace).await?;
            members::stop(&pod, Some(Duration::ZERO)).await
        }
    });
    tokio::select! {
        done = task => done??,
        () = node.until_stopping() => return Err(ApiError::stopping()),
    }
    pod.facts().ok_or_else(|| ApiError::no_pod(pod.id().as_str()))
}

/// Deletes a pod with its members. If `force` is true, running members are killed first.
///
/// # Errors
/// Returns an error if a member is running and `force` is false, no launcher is connected, or the launcher cannot
/// remove the files.
pub(crate) async fn delete(node: &Arc<Node>, pod: Arc<Handle>, force: bool) -> Result<(), ApiError> {
    node.run_detached(delete_whole(Arc::clone(node), pod, force)).await
}

async fn delete_whole(node: Arc<Node>, pod: Arc<Handle>, force: bool) -> Result<(), ApiError> {
    // Check this before the kill: without a launcher the files cannot be removed afterwards.
    node.launcher.session()?;
    let members = node.registry.close_pod(&pod, !force).map_err(|living| still_runs(pod.id(), &living))?;
    members::stop_all(members.clone(), Some(Duration::ZERO)).await?;
    members::stop(&pod, Some(Duration::ZERO)).await?;
    for member in members.into_iter().filter(|member| member.state().is_some()) {
        match delete::delete(&node, member, true).await {
            // The member was deleted in the meantime, by another caller or because its request asks for deletion on
            // completion.
            Err(problem) if problem.kind == Kind::NotFound => {}
            deleted => deleted?,
        }
    }
    delete::delete(&node, pod, false).await
}

fn still_runs(pod: &ContainerId, living: &[Arc<Handle>]) -> ApiError {
    let names: Vec<&str> = living.iter().map(|member| member.id().as_str()).take(NAMES_SHOWN).collect();
    let more = living.len() - names.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let why = format!(
        "the pod {pod} has members that are not completed ({}{more}): stop it first, or delete it with force",
        names.join(", ")
    );
    ApiError::new(Kind::Precondition, why)
}
