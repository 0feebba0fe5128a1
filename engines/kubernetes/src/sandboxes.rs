//! Sandboxes: run, stop, remove, list (rules C8, C9).

use std::sync::Arc;
use std::time::Duration;

use executor_client::Code;
use executor_cri_api::v1::{PodSandboxFilter, RunPodSandboxRequest};
use tonic::Status;

use crate::containers;
use crate::events::{self, EventKind};
use crate::failure::{self, forgiving};
use crate::lower::sandbox::{Host, lower};
use crate::node::{Node, now};
use crate::status::{has_labels, sandbox_state};
use crate::store::{Sandbox, SandboxRecord};

/// Runs a sandbox, and returns its id. The same request again returns the same id.
///
/// # Errors
/// INVALID_ARGUMENT (every field that cannot be honoured), ALREADY_EXISTS (another request with this name), or an error
/// of executord.
pub(crate) async fn run(node: &Arc<Node>, request: RunPodSandboxRequest) -> Result<String, Status> {
    let RunPodSandboxRequest { config, runtime_handler } = request;
    let config = config.ok_or_else(|| Status::invalid_argument("config: required"))?;
    let host = Host::read();
    // Nothing is recorded of a request that cannot be lowered.
    lower("", &config, &runtime_handler, &host)?;
    let record = SandboxRecord {
        config: config.clone(),
        runtime_handler: runtime_handler.clone(),
        created_at: now(),
        ..Default::default()
    };
    let begun = node.store.begin_sandbox(record)?;
    let id = begun.id.clone();
    let is_same = begun.config == config && begun.runtime_handler == runtime_handler;
    let request = lower(&id, &config, &begun.runtime_handler, &host)?;
    let mut created = node.client.pods().create(&request).await.map(|(pod, _)| pod);
    // executord cannot compare requests after it and its launcher have been restarted.
    if is_same && created.as_ref().is_err_and(|error| error.code() == Some(Code::AlreadyExists)) {
        created = node.client.pods().get(&id).await;
    }
    match created {
        Ok(pod) => {
            let is_first = !begun.is_created;
            if !node.store.sandbox_created(&id, pod)? {
                return Err(Status::aborted("the sandbox was removed while it was created"));
            }
            if is_first {
                events::publish(node, EventKind::ContainerCreatedEvent, &id, &id);
                events::publish(node, EventKind::ContainerStartedEvent, &id, &id);
            }
            Ok(id)
        }
        Err(error) => {
            // What exists keeps its name, and so does a request whose outcome is unknown: its retry joins it.
            let is_free = !begun.is_created && error.code() != Some(Code::AlreadyExists) && !error.is_lost();
            if is_free {
                node.store.remove_sandbox(&id);
            }
            Err(failure::status(&error))
        }
    }
}

/// Stops a sandbox: its members are killed, and its addresses freed. A missing sandbox is stopped (rule C5).
///
/// # Errors
/// Returns an error of executord.
pub(crate) async fn stop(node: &Arc<Node>, id: &str) -> Result<(), Status> {
    let Some(sandbox) = node.store.sandbox(id) else { return Ok(()) };
    let id = &sandbox.record.id;
    let was_ready = sandbox.is_ready();
    match node.client.pods().stop(id, Some(Duration::ZERO)).await {
        Ok(pod) => node.store.set_pod(pod),
        Err(error) if error.code() == Some(Code::NotFound) => {}
        Err(error) => return Err(failure::status(&error)),
    }
    for container in node.store.containers().into_iter().filter(|container| container.record.sandbox == *id) {
        events::refresh(node, &container.record.id).await.map_err(|error| failure::status(&error))?;
    }
    if was_ready {
        events::publish(node, EventKind::ContainerStoppedEvent, id, id);
    }
    Ok(())
}

/// Removes a sandbox with its members. A missing sandbox is removed (rule C5).
///
/// # Errors
/// Returns an error of executord.
pub(crate) async fn remove(node: &Arc<Node>, id: &str) -> Result<(), Status> {
    let Some(sandbox) = node.store.sandbox(id) else { return Ok(()) };
    let id = &sandbox.record.id;
    stop(node, id).await?;
    let (_, containers) = node.store.everything();
    for container in containers.into_iter().filter(|container| container.record.sandbox == *id) {
        containers::remove(node, &container.record.id).await?;
    }
    forgiving(node.client.pods().delete(id, true).await).map_err(|error| failure::status(&error))?;
    node.store.remove_sandbox(id);
    events::publish(node, EventKind::ContainerDeletedEvent, id, id);
    Ok(())
}

/// Returns the sandboxes that a filter selects.
pub(crate) fn list(node: &Node, filter: Option<PodSandboxFilter>) -> Vec<Sandbox> {
    let filter = filter.unwrap_or_default();
    let is_selected = |sandbox: &Sandbox| {
        sandbox.record.id.starts_with(&filter.id)
            && filter.state.as_ref().is_none_or(|state| state.state() == sandbox_state(sandbox))
            && has_labels(&sandbox.record.config.labels, &filter.label_selector)
    };
    node.store.sandboxes().into_iter().filter(is_selected).collect()
}
