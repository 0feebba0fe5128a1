//! Records the states that executord reports, and publishes CRI events to watchers (rule C42).

use std::sync::Arc;

use executor_client::v1::{self, State};
use executor_client::{Code, Error};
use executor_cri_api::v1::ContainerEventResponse;
pub(crate) use executor_cri_api::v1::ContainerEventType as EventKind;

use crate::node::{Node, now};
use crate::status;

/// Reads the state of a container from executord, and records the state.
///
/// # Errors
/// Returns an error if the call to executord fails, except for NOT_FOUND, which is recorded as a lost container.
pub(crate) async fn refresh(node: &Arc<Node>, id: &str) -> Result<(), Error> {
    match node.client.get(id).await {
        Ok(run) => record_container(node, run),
        Err(error) if error.code() == Some(Code::NotFound) => record_container_lost(node, id),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Records the state of a container, and publishes an event if the container has started or exited.
pub(crate) fn record_container(node: &Arc<Node>, run: v1::Container) {
    let (id, after) = (run.id.clone(), run.state());
    let has_started = run.started_at.is_some();
    let Some([before, _]) = node.store.containers.advance(&id, run) else { return };
    let sandbox = &before.record.sandbox;
    let before = before.state.as_ref().map(|run| run.state()).unwrap_or_default();
    if before != State::Unspecified && before < State::Running && after >= State::Running && has_started {
        publish(node, EventKind::ContainerStartedEvent, &id, sandbox);
    }
    if before != State::Unspecified && before != State::Completed && after == State::Completed {
        publish(node, EventKind::ContainerStoppedEvent, &id, sandbox);
    }
}

/// Records that executord has lost a container, and publishes its exit.
pub(crate) fn record_container_lost(node: &Arc<Node>, id: &str) {
    if node.store.containers.clear_state(id, |run| run.state() == State::Completed)
        && let Some(container) = node.store.containers.get(id)
    {
        publish(node, EventKind::ContainerStoppedEvent, id, &container.record.sandbox);
    }
}

/// Records the state of a pod, and publishes an event if the sandbox has stopped.
pub(crate) fn record_pod(node: &Arc<Node>, pod: v1::Pod) {
    let id = pod.id.clone();
    let changed = node.store.sandboxes.advance(&id, pod);
    if changed.is_some_and(|[before, after]| before.is_ready() && !after.is_ready()) {
        publish(node, EventKind::ContainerStoppedEvent, &id, &id);
    }
}

/// Records that executord has lost a pod, and publishes an event for the stopped sandbox.
pub(crate) fn record_pod_lost(node: &Arc<Node>, id: &str) {
    let was_ready = node.store.sandboxes.get(id).is_some_and(|sandbox| sandbox.is_ready());
    if node.store.sandboxes.clear_state(id, |_| false) && was_ready {
        publish(node, EventKind::ContainerStoppedEvent, id, id);
    }
}

/// Publishes an event to the watchers, with the status of the sandbox and of its containers.
pub(crate) fn publish(node: &Arc<Node>, kind: EventKind, id: &str, sandbox: &str) {
    if node.events.receiver_count() == 0 {
        return;
    }
    let members = node.store.containers.all().into_iter().filter(|container| container.record.sandbox == sandbox);
    let event = ContainerEventResponse {
        container_id: id.to_owned(),
        container_event_type: kind.into(),
        created_at: now(),
        pod_sandbox_status: node.sandbox(sandbox).ok().map(|sandbox| status::sandbox(&sandbox)),
        containers_statuses: members.map(|container| status::container(&container)).collect(),
    };
    let _ = node.events.send(Arc::new(event)); // fails if there are no watchers
}
