//! Runs, stops, removes and lists sandboxes (rules C8, C9).

use std::sync::Arc;
use std::time::Duration;

use executor_client::Code;
use executor_cri_api::v1::{PodSandboxFilter, RunPodSandboxRequest};
use tonic::Status;

use crate::containers;
use crate::events::{self, EventKind};
use crate::failure::{self, ignore_not_found, was_created_before};
use crate::ids;
use crate::lower::sandbox::{Host, lower};
use crate::node::{Node, now};
use crate::secrets;
use crate::status::{has_labels, sandbox_state};
use crate::store::{Record as _, Sandbox, SandboxRecord};

/// Runs a sandbox, and returns its id. A repeated equal request returns the same id.
///
/// # Errors
/// Returns INVALID_ARGUMENT with every violation if a field is invalid or not supported, PERMISSION_DENIED if no rule
/// allows a secret, ALREADY_EXISTS if another request has used the name, or an error if a call to executord fails.
pub(crate) async fn run(node: &Arc<Node>, request: RunPodSandboxRequest) -> Result<String, Status> {
    let RunPodSandboxRequest { config, runtime_handler } = request;
    let config = config.ok_or_else(|| Status::invalid_argument("config: required"))?;
    let id = ids::new()?;
    // Lower the request first, so that no record is written for an invalid request.
    let request = lower(&id, &config, &runtime_handler, &Host::read(), node.user_namespaces);
    let (request, secrets) = failure::both(request, secrets::read(&node.secrets_annotation, &config.annotations))?;
    let allowed = secrets::check_rules(&node.config_file, &config, secrets.values());
    let record = SandboxRecord {
        id: id.clone(),
        config,
        runtime_handler,
        secrets,
        created_at: now(),
        ..SandboxRecord::default()
    };
    // A retry waits here until the first call has completed.
    let _name = node.lock_name(&record.name()).await;
    match node.store.insert_sandbox(record.clone())? {
        None => {}
        Some(earlier) if earlier.is_created => {
            return match earlier.config == record.config && earlier.runtime_handler == record.runtime_handler {
                true => Ok(earlier.id.clone()),
                false => Err(Status::already_exists(
                    "metadata: a sandbox with this name and another configuration exists; remove it first",
                )),
            };
        }
        Some(unfinished) => {
            // The outcome of an earlier call is unknown: delete the pod that the call may have created.
            ignore_not_found(node.client.pods().delete(&unfinished.id, true).await).map_err(failure::status)?;
            node.store.sandboxes.remove(&unfinished.id);
            node.store.insert_sandbox(record)?;
        }
    }
    // The rules apply to new sandboxes only: a retry finds its sandbox even if a rule was removed (rule C8).
    if let Err(denied) = allowed {
        node.store.sandboxes.remove(&id);
        return Err(denied);
    }
    let mut outcome = node.client.pods().create(&request).await;
    if outcome.as_ref().is_err_and(was_created_before) {
        ignore_not_found(node.client.pods().delete(&id, true).await).map_err(failure::status)?;
        outcome = node.client.pods().create(&request).await;
    }
    match outcome {
        Ok((pod, _)) => {
            if !node.store.sandboxes.created(&id, pod)? {
                let _ = node.client.pods().delete(&id, true).await;
                return Err(Status::aborted("the sandbox was removed while it was created"));
            }
            events::publish(node, EventKind::ContainerCreatedEvent, &id, &id);
            events::publish(node, EventKind::ContainerStartedEvent, &id, &id);
            Ok(id)
        }
        Err(error) => {
            // If the outcome is unknown, the record stays until the retry.
            if !error.is_lost() {
                node.store.sandboxes.remove(&id);
            }
            Err(failure::new_object(error))
        }
    }
}

/// Stops a sandbox: kills its containers and frees its addresses. Succeeds if the sandbox does not exist (rule C5).
///
/// # Errors
/// Returns an error if a call to executord fails.
pub(crate) async fn stop(node: &Arc<Node>, id: &str) -> Result<(), Status> {
    let Some(sandbox) = node.store.sandboxes.get(id) else { return Ok(()) };
    let id = &sandbox.record.id;
    match node.client.pods().stop(id, Some(Duration::ZERO)).await {
        Ok(pod) => events::record_pod(node, pod),
        Err(error) if error.code() == Some(Code::NotFound) => events::record_pod_lost(node, id),
        Err(error) => return Err(failure::status(error)),
    }
    for container in node.store.containers.all().into_iter().filter(|container| container.record.sandbox == *id) {
        events::refresh(node, &container.record.id).await.map_err(failure::status)?;
    }
    Ok(())
}

/// Removes a sandbox with its containers. Succeeds if the sandbox does not exist (rule C5).
///
/// # Errors
/// Returns an error if a call to executord fails.
pub(crate) async fn remove(node: &Arc<Node>, id: &str) -> Result<(), Status> {
    let Some(sandbox) = node.store.sandboxes.get(id) else { return Ok(()) };
    let id = &sandbox.record.id;
    stop(node, id).await?;
    let containers = node.store.containers.everything();
    for container in containers.into_iter().filter(|container| container.record.sandbox == *id) {
        containers::remove(node, &container.record.id).await?;
    }
    ignore_not_found(node.client.pods().delete(id, true).await).map_err(failure::status)?;
    // Publish the event before the removal, so that the event has the last status.
    events::publish(node, EventKind::ContainerDeletedEvent, id, id);
    node.store.sandboxes.remove(id);
    node.streams.revoke(id);
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
    node.store.sandboxes.all().into_iter().filter(is_selected).collect()
}
