//! Status of sandboxes and containers, from their records and the state of executord: rules C10, C12, C13 and C17.

use std::collections::BTreeMap;

use executor_client::v1::exit_status::Status as Exit;
use executor_client::v1::failure::Kind;
use executor_client::v1::{self, State};
use executor_cri_api::v1::{
    Container as ListedContainer, ContainerResources, ContainerState, ContainerStatus, ContainerUser, ImageSpec,
    LinuxContainerUser, LinuxPodSandboxStatus, Namespace, PodIp, PodSandbox, PodSandboxNetworkStatus, PodSandboxState,
    PodSandboxStatus,
};
use prost_types::Timestamp;

use crate::lower::process::signal_of_number;
use crate::lower::sandbox::namespaces;
use crate::store::{Container, Sandbox};

/// Exit code of a program that could not be started.
const NOT_STARTED: i32 = 128;
/// Exit code of a process that was killed, or whose exit status is unknown.
const KILLED: i32 = 137;
/// Maximum length of a container's message, in characters.
const MESSAGE_MAX: usize = 4096;

/// Result of a container: exit code, reason and message.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) exit_code: i32,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

pub(crate) fn state(container: &Container) -> ContainerState {
    match container.state.as_ref().map(|run| run.state()) {
        None => ContainerState::ContainerExited, // executord has no record of the container
        Some(State::Unspecified | State::Reserved | State::Initializing | State::Created) => {
            ContainerState::ContainerCreated
        }
        Some(State::Running | State::Stopping | State::Wiping) => ContainerState::ContainerRunning,
        Some(State::Completed) => ContainerState::ContainerExited,
    }
}

/// Returns the result of a container (rule C13).
fn end(container: &Container) -> End {
    let unknown = |message: &str| End { exit_code: KILLED, reason: "ContainerStatusUnknown", message: message.into() };
    let Some(run) = &container.state else { return unknown("executord has no record of the container") };
    let Some(result) = &run.result else { return End::default() };
    let message = |text: &str| text.chars().take(MESSAGE_MAX).collect::<String>();
    let failure = result.failure.as_ref();
    let why = failure.map(|failure| message(&failure.message)).unwrap_or_default();
    match failure.map(|failure| failure.kind()) {
        Some(Kind::Exec | Kind::Prepare) => {
            return End { exit_code: NOT_STARTED, reason: "StartError", message: why };
        }
        Some(Kind::SupervisorLost | Kind::HostStopped) => return unknown(&why),
        _ => {}
    }
    let exit_code = match result.exit.and_then(|exit| exit.status) {
        Some(Exit::Code(code)) => code,
        Some(Exit::Signal(signal)) => 128 + signal,
        None => KILLED, // stopped before Start
    };
    let reason = match exit_code {
        0 => "Completed",
        _ if result.oom_killed => "OOMKilled",
        _ => "Error",
    };
    End { exit_code, reason, message: message(&result.termination_message) }
}

pub(crate) fn container(container: &Container) -> ContainerStatus {
    let record = &container.record;
    let config = &record.config;
    let state = state(container);
    let run = container.state.as_deref().cloned().unwrap_or_default();
    let spec = run.spec.unwrap_or_default();
    let mut status = ContainerStatus {
        id: record.id.clone(),
        metadata: config.metadata.clone(),
        state: state.into(),
        created_at: record.created_at,
        started_at: nanoseconds(run.started_at.as_ref()),
        image: Some(image(container)),
        image_ref: record.image_ref.clone(),
        image_id: record.image_id.clone(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        mounts: config.mounts.clone(),
        log_path: record.log.clone(),
        resources: Some(ContainerResources { linux: Some(record.resources.clone()), windows: None }),
        stop_signal: signal_of_number(spec.stop_signal).into(),
        user: spec.uid.map(|uid| user(uid, spec.gid.unwrap_or_default(), &spec.group_ids)),
        ..ContainerStatus::default()
    };
    if state == ContainerState::ContainerExited {
        let End { exit_code, reason, message } = end(container);
        status.finished_at = nanoseconds(run.finished_at.as_ref()).max(record.created_at);
        (status.exit_code, status.reason, status.message) = (exit_code, reason.to_owned(), message);
    }
    status
}

/// Returns the user of a container. The supplementary groups include the primary group, as with other runtimes.
fn user(uid: u32, gid: u32, groups: &[u32]) -> ContainerUser {
    let mut supplemental_groups: Vec<i64> = groups.iter().chain([&gid]).map(|&group| group.into()).collect();
    supplemental_groups.sort_unstable();
    supplemental_groups.dedup();
    ContainerUser { linux: Some(LinuxContainerUser { uid: uid.into(), gid: gid.into(), supplemental_groups }) }
}

/// Returns the reason if a container has exited without a start.
pub(crate) fn start_error(container: &Container) -> Option<String> {
    let result = container.state.as_ref().filter(|run| run.started_at.is_none())?.result.as_ref()?;
    Some(
        result
            .failure
            .as_ref()
            .map_or_else(|| "the container was stopped".to_owned(), |failure| failure.message.clone()),
    )
}

fn image(container: &Container) -> ImageSpec {
    let mut image = container.record.config.image.clone().unwrap_or_default();
    if !image.user_specified_image.is_empty() {
        image.image.clone_from(&image.user_specified_image);
    }
    image
}

/// Returns a container as an item of the response to ListContainers.
pub(crate) fn listed_container(container: &Container) -> ListedContainer {
    let record = &container.record;
    ListedContainer {
        id: record.id.clone(),
        pod_sandbox_id: record.sandbox.clone(),
        metadata: record.config.metadata.clone(),
        image: Some(image(container)),
        image_ref: record.image_ref.clone(),
        state: state(container).into(),
        created_at: record.created_at,
        labels: record.config.labels.clone(),
        annotations: record.config.annotations.clone(),
        image_id: record.image_id.clone(),
    }
}

pub(crate) fn sandbox_state(sandbox: &Sandbox) -> PodSandboxState {
    match sandbox.is_ready() {
        true => PodSandboxState::SandboxReady,
        false => PodSandboxState::SandboxNotready,
    }
}

pub(crate) fn sandbox(sandbox: &Sandbox) -> PodSandboxStatus {
    let record = &sandbox.record;
    let network = sandbox.state.as_ref().and_then(|pod| pod.network_status.as_ref());
    PodSandboxStatus {
        id: record.id.clone(),
        metadata: record.config.metadata.clone(),
        state: sandbox_state(sandbox).into(),
        created_at: record.created_at,
        network: Some(network.map(addresses).unwrap_or_default()),
        linux: Some(LinuxPodSandboxStatus {
            namespaces: Some(Namespace { options: Some(namespaces(&record.config)) }),
        }),
        labels: record.config.labels.clone(),
        annotations: record.config.annotations.clone(),
        runtime_handler: record.runtime_handler.clone(),
    }
}

/// Returns the addresses: the first IPv4 address is the pod's, and the others are additional (rule C22).
fn addresses(network: &v1::NetworkStatus) -> PodSandboxNetworkStatus {
    let address = |text: &String| text.split('/').next().unwrap_or(text).to_owned();
    let mut all: Vec<String> = network.addresses.iter().map(address).collect();
    let first = all.iter().position(|address| !address.contains(':')).unwrap_or(0);
    if all.is_empty() {
        return PodSandboxNetworkStatus::default();
    }
    let ip = all.remove(first);
    PodSandboxNetworkStatus { ip, additional_ips: all.into_iter().map(|ip| PodIp { ip }).collect() }
}

/// Returns a sandbox as an item of the response to ListPodSandbox.
pub(crate) fn listed_sandbox(sandbox: &Sandbox) -> PodSandbox {
    let record = &sandbox.record;
    PodSandbox {
        id: record.id.clone(),
        metadata: record.config.metadata.clone(),
        state: sandbox_state(sandbox).into(),
        created_at: record.created_at,
        labels: record.config.labels.clone(),
        annotations: record.config.annotations.clone(),
        runtime_handler: record.runtime_handler.clone(),
    }
}

/// Returns true if an object has all wanted labels.
pub(crate) fn has_labels(labels: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(name, value)| labels.get(name) == Some(value))
}

/// Converts a time to nanoseconds since 1970; 0 if unset.
pub(crate) fn nanoseconds(time: Option<&Timestamp>) -> i64 {
    time.map_or(0, |time| time.seconds.saturating_mul(1_000_000_000).saturating_add(time.nanos.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use executor_client::v1::{ExitStatus, Failure};

    use crate::store::ContainerRecord;

    fn ended(exit: Option<Exit>, oom_killed: bool, failure: Option<Kind>) -> Container {
        let failure = failure.map(|kind| Failure { kind: kind.into(), message: "why".into(), ..Failure::default() });
        let exit = exit.map(|status| ExitStatus { status: Some(status) });
        let result = v1::Result { exit, oom_killed, failure, ..v1::Result::default() };
        let run = v1::Container { state: State::Completed.into(), result: Some(result), ..v1::Container::default() };
        let record = ContainerRecord { created_at: 5, ..ContainerRecord::default() };
        Container { record: Arc::new(record), state: Some(Arc::new(run)) }
    }

    /// Rule C13: each kind of result has its exit code and reason.
    #[test]
    fn reasons_of_ends() {
        let reason = |exit, oom_killed, failure| {
            let status = container(&ended(exit, oom_killed, failure));
            assert!(status.finished_at > 0);
            (status.exit_code, status.reason)
        };
        assert_eq!(reason(Some(Exit::Code(0)), false, None), (0, "Completed".into()));
        assert_eq!(reason(Some(Exit::Code(3)), false, Some(Kind::Action)), (3, "Error".into()));
        assert_eq!(reason(Some(Exit::Signal(9)), true, Some(Kind::Action)), (137, "OOMKilled".into()));
        assert_eq!(reason(Some(Exit::Signal(15)), false, None), (143, "Error".into()));
        assert_eq!(reason(None, false, Some(Kind::Exec)), (128, "StartError".into()));
        assert_eq!(reason(None, false, Some(Kind::SupervisorLost)), (137, "ContainerStatusUnknown".into()));
        assert_eq!(reason(None, false, Some(Kind::NotStarted)), (137, "Error".into()));
        let lost = Container { state: None, ..ended(None, false, None) };
        assert_eq!(container(&lost).reason, "ContainerStatusUnknown");
        assert_eq!(start_error(&ended(None, false, Some(Kind::Exec))), Some("why".into()));
    }

    /// Rule C12: the supplementary groups include the primary group.
    #[test]
    fn own_group_is_listed() {
        let groups = |groups: &[u32]| user(1000, 1000, groups).linux.unwrap().supplemental_groups;
        assert_eq!(groups(&[50_000, 1234]), [1000, 1234, 50_000]);
        assert_eq!(groups(&[1000]), [1000]);
    }

    /// Rule C22: the first IPv4 address is the address of the pod.
    #[test]
    fn first_ipv4_address_is_the_pods() {
        let list = ["fd00::2/64", "10.1.0.2/24", "10.1.0.3/24"].map(String::from).to_vec();
        let status = addresses(&v1::NetworkStatus { addresses: list, ..v1::NetworkStatus::default() });
        assert_eq!(status.ip, "10.1.0.2");
        assert_eq!(status.additional_ips.len(), 2);
    }
}
