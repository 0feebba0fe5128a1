//! Creates, starts, stops, removes, updates and lists containers (rules C8, C10, C11, C15).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use executor_client::v1::{Limits, UpdateFilesRequest, UpdateLimitsRequest};
use executor_client::{Code, Run, Wiped};
use executor_core::limits::GRACE_MAX;
use executor_core::plan::DEV;
use executor_cri_api::v1::{
    ContainerConfig, ContainerFilter, ContainerState, CreateContainerRequest, LinuxContainerResources,
    StopContainerRequest,
};
use tonic::Status;

use crate::events::{self, EventKind};
use crate::failure::{self, Violations, ignore_not_found, was_created_before};
use crate::ids;
use crate::images;
use crate::lower::container::{Origin, lower};
use crate::lower::resources;
use crate::node::{Node, now};
use crate::pod_cgroup;
use crate::secrets::{self, PodToken, RequestSecrets};
use crate::stats;
use crate::status::{has_labels, start_error, state};
use crate::store::{Container, ContainerRecord, Record as _, SandboxRecord};

/// Creates a container, and returns its id. A repeated equal request returns the same id.
///
/// # Errors
/// Returns INVALID_ARGUMENT with every violation if a field is invalid or not supported, FAILED_PRECONDITION if the
/// sandbox or the image does not exist or the sandbox is not ready, PERMISSION_DENIED if no rule allows a secret,
/// ALREADY_EXISTS if another request has used the name, or an error if a call to executord fails. Never returns
/// NOT_FOUND, for which the kubelet would skip the pod (rule C5).
pub(crate) async fn create(node: &Arc<Node>, request: CreateContainerRequest) -> Result<String, Status> {
    let CreateContainerRequest { pod_sandbox_id, config, .. } = request;
    let mut config = config.ok_or_else(|| Status::invalid_argument("config: required"))?;
    let sandbox = node.sandbox(&pod_sandbox_id).map_err(failure::precondition)?;
    if config.metadata.as_ref().is_none_or(|metadata| metadata.name.is_empty()) {
        return Err(Status::invalid_argument("config.metadata.name: required"));
    }
    if !sandbox.is_ready() {
        return Err(Status::failed_precondition("the sandbox is not ready"));
    }
    let name = config.metadata.as_ref().map(|metadata| &*metadata.name).unwrap_or_default();
    let annotated = sandbox.record.secrets.get(name).cloned().unwrap_or_default();
    let allowed = secrets::check_rules(&node.config_file, &sandbox.record.config, [&annotated]);
    let mut secrets = RequestSecrets::from(&annotated);
    let uid = sandbox.record.config.metadata.as_ref().map(|metadata| &*metadata.uid).unwrap_or_default();
    let of_volumes = node.volumes.resolve(&node.config_file, uid, &config.mounts, &mut secrets).await?;
    let allowed = allowed.and(of_volumes);
    let log = log_path(&sandbox.record.config.log_directory, &config.log_path)?;
    let name = config.image.clone().unwrap_or_default().image;
    let image = images::find(node, &name).await?;
    let image =
        image.ok_or_else(|| Status::failed_precondition(format!("config.image: there is no image {name:?}")))?;
    let volumes = image_volumes(node, &mut config).await?;
    let requested = config.linux.clone().unwrap_or_default().resources.unwrap_or_default();
    let record = ContainerRecord {
        id: ids::new()?,
        sandbox: sandbox.record.id.clone(),
        config: config.clone(),
        log: log.clone(),
        image_id: image.id.clone(),
        image_ref: image.digest_name(),
        resources: requested,
        secret_volumes: secrets.volumes(),
        created_at: now(),
        is_created: false,
    }
    .without_environment();
    let origin = Origin {
        sandbox: &sandbox.record.id,
        sandbox_config: &sandbox.record.config,
        rootfs: &image.rootfs,
        log: &log,
        volumes: &volumes,
        secrets: &secrets,
        oom_score_adj_min: node.oom_score_adj_min,
        allows_all_devices: is_privileged(&config) && allows_all_devices(node).await?,
    };
    // Lower the request first, so that no record is written for an invalid request.
    let request = lower(&origin, config)?;
    let image_fields = failure::image_fields(&request.volumes);
    let mut run = Run::from(request);
    // A retry waits here until the first call has completed.
    let _name = node.lock_name(&record.name()).await;
    let (mut id, mut is_created) = (record.id.clone(), false);
    match node.store.insert_container(record.clone())? {
        None => {}
        Some(earlier) if earlier.is_created && earlier.config != record.config => {
            return Err(Status::already_exists(
                "metadata: a container with this name and another configuration exists; remove it first",
            ));
        }
        Some(earlier) if earlier.is_created => (id, is_created) = (earlier.id.clone(), true),
        Some(unfinished) => {
            // The outcome of an earlier call is unknown: delete the container that the call may have created.
            ignore_not_found(node.client.delete(&unfinished.id, true).await).map_err(failure::status)?;
            node.store.containers.remove(&unfinished.id);
            node.store.insert_container(record)?;
        }
    }
    // If a token is missing, executord would refuse the request, so the variables of this retry are not compared.
    if is_created && allowed.as_ref().is_err_and(|error| error.code() == Code::Unavailable) {
        return Ok(id);
    }
    // The rules apply to new containers only: a retry finds its container even if a rule was removed (rule C8).
    if !is_created && let Err(denied) = allowed {
        node.store.containers.remove(&id);
        return Err(denied);
    }
    run = run.id(&id);
    // The buffers of this connection hold variables, so the connection ends with the call. executord compares the
    // variables of a retry.
    let client = node.own_client().await?;
    let mut outcome = client.run(&run).await;
    if !is_created && outcome.as_ref().is_err_and(was_created_before) {
        ignore_not_found(client.delete(&id, true).await).map_err(failure::status)?;
        outcome = client.run(&run).await;
    }
    match outcome {
        Ok(started) => {
            if !node.store.containers.created(&id, started.container)? {
                let _ = node.client.delete(&id, true).await;
                return Err(Status::aborted("the container was removed while it was created"));
            }
            if !is_created {
                events::publish(node, EventKind::ContainerCreatedEvent, &id, &sandbox.record.id);
            }
            Ok(id)
        }
        Err(error) => {
            // If the outcome is unknown, the record stays until the retry.
            if !is_created && !error.is_lost() {
                node.store.containers.remove(&id);
            }
            Err(failure::new_container(secrets.named(error), &image_fields))
        }
    }
}

/// Sends a new token of a volume to the containers that mount the volume. A failure is only logged: the kubelet
/// sends the token again after one to two minutes.
pub(crate) async fn renew_token(node: &Arc<Node>, volume: &str, token: &PodToken) {
    let containers = node.store.containers.all().into_iter();
    let is_user = |container: &Container| {
        container.record.secret_volumes.iter().any(|id| id == volume)
            && state(container) != ContainerState::ContainerExited
    };
    for container in containers.filter(is_user) {
        let id = container.record.id.clone();
        let request = UpdateFilesRequest {
            id: id.clone(),
            provider_tokens: vec![token.lowered()],
            ..UpdateFilesRequest::default()
        };
        let request = Wiped::new(request);
        let sent = match node.own_client().await {
            Ok(client) => client.update_files(request).await.map(drop).map_err(failure::status),
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            tracing::warn!(id, provider = token.provider, "cannot renew the token of a container: {}", error.message());
        }
    }
}

fn is_privileged(config: &ContainerConfig) -> bool {
    let security = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    security.is_some_and(|security| security.privileged)
}

/// Returns true if executord's policy allows all devices of the host.
async fn allows_all_devices(node: &Node) -> Result<bool, Status> {
    let info = node.client.info().await.map_err(failure::status)?;
    Ok(info.device_paths.iter().any(|path| path == DEV))
}

/// Records the ids of the mounted images in the request's mounts, and returns the references of the images' manifests
/// by image id.
///
/// # Errors
/// Returns FAILED_PRECONDITION if an image is missing, or an error if a call to executord fails.
async fn image_volumes(node: &Node, config: &mut ContainerConfig) -> Result<BTreeMap<String, String>, Status> {
    let mut volumes = BTreeMap::new();
    for (index, mount) in config.mounts.iter_mut().enumerate() {
        let Some(image) = mount.image.as_mut().filter(|image| !image.image.is_empty()) else { continue };
        let missing = || {
            let name = &image.image;
            Status::failed_precondition(format!(
                "ImageVolumeMountFailed: config.mounts[{index}].image: there is no image {name:?}"
            ))
        };
        let found = images::find(node, &image.image).await?.ok_or_else(missing)?;
        image.image_ref.clone_from(&found.id);
        volumes.insert(found.id, found.rootfs);
    }
    Ok(volumes)
}

/// Returns the absolute path of a log (rule C31), or an empty path if the directory or the relative path is empty.
fn log_path(directory: &str, path: &str) -> Result<String, Status> {
    if directory.is_empty() || path.is_empty() {
        return Ok(String::new());
    }
    if path.split('/').any(|part| part == "..") {
        return Err(Status::invalid_argument("config.log_path: must not contain \"..\""));
    }
    Ok(format!("{}/{}", directory.trim_end_matches('/'), path.trim_start_matches('/')))
}

/// Starts a container, and returns when its program has been executed.
///
/// # Errors
/// Returns NOT_FOUND if the container does not exist, FAILED_PRECONDITION if the container is not in the state CREATED
/// or its sandbox is not ready, UNKNOWN if the program cannot be executed, or an error if a call to executord fails.
pub(crate) async fn start(node: &Arc<Node>, id: &str) -> Result<(), Status> {
    let container = node.container(id)?;
    let id = &container.record.id;
    if !node.store.sandboxes.get(&container.record.sandbox).is_some_and(|sandbox| sandbox.is_ready()) {
        return Err(Status::failed_precondition("the sandbox is not ready"));
    }
    if state(&container) != ContainerState::ContainerCreated {
        return Err(Status::failed_precondition(format!(
            "the container is {}, not CONTAINER_CREATED",
            state(&container).as_str_name()
        )));
    }
    let run = node.client.start(id).await.map_err(failure::status)?;
    events::record_container(node, run);
    // If the program cannot be executed, the container is about to complete.
    let container = node.container(id)?;
    let failed = container.state.as_ref().is_some_and(|run| run.started_at.is_none());
    if failed {
        let run = within(EXIT_TIMEOUT, node.client.wait(id)).await?.map_err(failure::status)?;
        events::record_container(node, run);
        if let Some(why) = start_error(&node.container(id)?) {
            return Err(Status::unknown(format!("cannot start the container: {why}")));
        }
    }
    Ok(())
}

/// Stops a container, and returns after the container has exited. Succeeds if the container does not exist (rule C5).
///
/// # Errors
/// Returns an error if a call to executord fails.
pub(crate) async fn stop(node: &Arc<Node>, request: &StopContainerRequest) -> Result<(), Status> {
    let Some(container) = node.store.containers.get(&request.container_id) else { return Ok(()) };
    if state(&container) == ContainerState::ContainerExited {
        return Ok(());
    }
    end(node, &container.record.id, grace(&container.record.id, request.timeout)).await
}

/// Returns the grace period of a stop. An error would leave the container running, so a period that executord does not
/// allow is shortened, with a warning.
fn grace(id: &str, seconds: i64) -> Duration {
    let requested = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    if requested > GRACE_MAX {
        tracing::warn!(id, "the grace period of {seconds} s is too long; it is shortened to {} s", GRACE_MAX.as_secs());
    }
    requested.min(GRACE_MAX)
}

/// Time limit for a container to exit after SIGKILL. A process that waits for a dead file system takes longer.
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);

async fn end(node: &Arc<Node>, id: &str, grace: Duration) -> Result<(), Status> {
    let ended = async {
        node.client.stop(id, Some(grace)).await?;
        node.client.wait(id).await
    };
    match within(grace + EXIT_TIMEOUT, ended).await? {
        Ok(run) => events::record_container(node, run),
        Err(error) if error.code() == Some(Code::NotFound) => events::record_container_lost(node, id),
        Err(error) => return Err(failure::status(error)),
    }
    Ok(())
}

async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Result<T, Status> {
    let late = |_| Status::deadline_exceeded(format!("the container has not exited within {} s", limit.as_secs()));
    tokio::time::timeout(limit, future).await.map_err(late)
}

/// Removes a container, and kills the container first if it is running. The log file stays. Succeeds if the container
/// does not exist (rule C5).
///
/// # Errors
/// Returns an error if a call to executord fails.
pub(crate) async fn remove(node: &Arc<Node>, id: &str) -> Result<(), Status> {
    let unfinished = || node.store.containers.everything().into_iter().find(|container| container.record.id == id);
    let Some(container) = node.store.containers.get(id).or_else(unfinished) else { return Ok(()) };
    let id = &container.record.id;
    if state(&container) == ContainerState::ContainerRunning {
        end(node, id, Duration::ZERO).await?;
    }
    // The counters of a sandbox without a cgroup of its own must not decrease.
    let sandbox = node.store.sandboxes.get(&container.record.sandbox);
    let usages = match sandbox.is_none_or(|sandbox| pod_cgroup::has_parent(&sandbox.record.config)) {
        true => BTreeMap::new(),
        false => stats::usages(node, std::slice::from_ref(&container)).await.unwrap_or_default(),
    };
    let used = usages.get(id).and_then(|usage| usage.cpu).map_or(0, |cpu| cpu.total_ns);
    let record_removal = |record: &mut SandboxRecord| record.record_removal(id, used);
    if let Err(error) = node.store.sandboxes.change(&container.record.sandbox, record_removal) {
        tracing::warn!(sandbox = container.record.sandbox, "cannot record the processor time: {}", error.message());
    }
    ignore_not_found(node.client.delete(id, true).await).map_err(failure::status)?;
    if node.store.containers.remove(id) {
        // Drop registered commands, which hold arguments while they wait for their clients.
        node.streams.revoke(id);
        events::publish(node, EventKind::ContainerDeletedEvent, id, &container.record.sandbox);
    }
    Ok(())
}

/// Changes the resources of a container. If a resource is refused, none is changed (rule C15).
///
/// # Errors
/// Returns FAILED_PRECONDITION if the container does not exist, INVALID_ARGUMENT if a resource is invalid, or an error
/// if a call to executord fails.
pub(crate) async fn update(node: &Arc<Node>, id: &str, changed: Option<LinuxContainerResources>) -> Result<(), Status> {
    let container = node.container(id).map_err(failure::precondition)?;
    let Some(changed) = changed else { return Ok(()) };
    let record = &container.record;
    let mut violations = Violations::default();
    let limits = resources::change(&changed, &mut violations);
    violations.check()?;
    // The kubelet may send an update without limits, which executord would refuse.
    if limits != Limits::default() {
        let request = UpdateLimitsRequest { id: record.id.clone(), limits: Some(limits) };
        let run = node.client.update_limits(request).await.map_err(failure::status)?;
        events::record_container(node, run);
    }
    let merge = |record: &mut ContainerRecord| {
        record.resources = resources::merged(&record.resources, &changed);
        true
    };
    node.store.containers.change(&record.id, merge).map(drop)
}

/// Returns the containers that a filter selects.
pub(crate) fn list(node: &Node, filter: Option<ContainerFilter>) -> Vec<Container> {
    let filter = filter.unwrap_or_default();
    let is_selected = |container: &Container| {
        container.record.id.starts_with(&filter.id)
            && container.record.sandbox.starts_with(&filter.pod_sandbox_id)
            && filter.state.as_ref().is_none_or(|wanted| wanted.state() == state(container))
            && has_labels(&container.record.config.labels, &filter.label_selector)
    };
    node.store.containers.all().into_iter().filter(is_selected).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule C11: grace periods of up to 7 days are accepted, and longer periods are shortened.
    #[test]
    fn grace_periods_of_days_are_kept() {
        for (seconds, expected) in [(-1, 0), (0, 0), (30, 30), (86_400, 86_400), (i64::MAX, 604_800)] {
            assert_eq!(grace("c", seconds).as_secs(), expected, "{seconds}");
        }
    }

    /// Rule C31: a log is below the log directory of its sandbox.
    #[test]
    fn logs_are_below_their_directory() {
        assert_eq!(log_path("/var/log/pods/a/", "c/0.log").unwrap(), "/var/log/pods/a/c/0.log");
        assert_eq!(log_path("", "c/0.log").unwrap(), "");
        assert_eq!(log_path("/var/log/pods/a", "").unwrap(), "");
        assert!(log_path("/var/log/pods/a", "../0.log").is_err());
    }
}
