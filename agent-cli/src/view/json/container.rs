//! A container: its specification and its status.

use std::collections::BTreeMap;

use executor_client::v1;
use serde::Serialize;

use super::ending::Ending;
use super::steps::Step;
use super::usage::Limits;
use super::{
    checks, host_options, identity, isolation, networks, outputs, restarts, seconds, sorted, sources, surroundings,
    time,
};
use crate::view::human::{mount_kind, network, state, word};

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Container {
    id: String,
    state: String,
    /// Bytes of output that were dropped before they could be read; only from `run`.
    output_dropped_bytes: Option<u64>,
    /// Image that was run, even if its name refers to another image by now.
    image: Option<ImageInUse>,
    /// Images of the container's volumes.
    volume_images: Vec<ImageInUse>,
    spec: Spec,
    files: Vec<SecretFile>,
    /// Process id of the shim on the host; null before the shim runs and after the container is completed.
    shim_pid: Option<u32>,
    processes: Vec<Process>,
    created_at: Option<String>,
    started_at: Option<String>,
    finished_at: Option<String>,
    files_generation: u64,
    files_updated_at: Option<String>,
    id_range_start: Option<u32>,
    egress_generation: u64,
    limits_generation: u64,
    paused: bool,
    network_status: Option<networks::Status>,
    ready: bool,
    check_statuses: Vec<checks::CheckStatus>,
    startup_passed: bool,
    result: Option<Ending>,
    /// Actions of a tree, parents before children; empty for a single program.
    steps: Vec<Step>,
    /// Restarts; null without a restart policy.
    restart: Option<restarts::RestartStatus>,
    /// Time at which a reservation expires; null for other containers.
    reservation_expires_at: Option<String>,
    /// Quarantine, set while the container does not change its state in time.
    quarantine: Option<super::Quarantine>,
    /// Inputs given by reference.
    secret_sources: Vec<sources::SecretSource>,
    identity: Option<identity::InstanceIdentity>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ImageInUse {
    reference: String,
    digest: String,
}

/// The document of `rotate`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Rotated {
    id: String,
    files_generation: u64,
    files_updated_at: Option<String>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Spec {
    rootfs: String,
    path: String,
    argument_count: u32,
    dir: String,
    environment_names: Vec<String>,
    user: String,
    uid: Option<u32>,
    gid: Option<u32>,
    limits: Limits,
    nofile: u64,
    #[serde(flatten)]
    isolation: isolation::Isolation,
    network: String,
    #[serde(flatten)]
    connectivity: networks::Connectivity,
    #[serde(flatten)]
    surroundings: surroundings::Surroundings,
    #[serde(flatten)]
    host_options: host_options::HostOptions,
    remove_when_completed: bool,
    keep_until_deleted: bool,
    grace_period_seconds: Option<f64>,
    labels: BTreeMap<String, String>,
    log_source: String,
    suppress_log_output: bool,
    warnings: Vec<String>,
    outputs: Option<outputs::Declared>,
    secret_environment_names: Vec<String>,
    secret_argument_indices: Vec<u32>,
    redaction: String,
    runtime_token_path: Option<String>,
    writable_files: Option<WritableFiles>,
    /// Limits of the log; -1 for no limit.
    log_limits: LogLimits,
    log_tags: BTreeMap<String, String>,
    checks: Option<checks::Checks>,
    /// Pod that the container is a member of.
    pod: Option<String>,
    restart_policy: Option<restarts::RestartPolicy>,
    extra_groups: Vec<String>,
    strict_groups: bool,
    merge_groups: bool,
    /// Numbers of all supplementary groups.
    group_ids: Vec<u32>,
    keep_environment: bool,
    /// True if the process starts only with `agent-cli start`.
    hold: bool,
    termination_message: Option<TerminationMessage>,
    cgroup_parent: String,
    log_file: Option<String>,
    host_pid: bool,
    host_ipc: bool,
    id_map: Option<surroundings::IdMapping>,
    pid_of: String,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct TerminationMessage {
    path: String,
    bytes_max: u32,
    fallback_to_logs: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LogLimits {
    bytes_per_second: Option<i64>,
    lines_per_second: Option<i64>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct WritableFiles {
    /// Maximum number of bytes beyond the files of the request.
    bytes_max: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SecretFile {
    path: String,
    size: u64,
    mode: String,
    uid: u32,
    gid: u32,
    mount_point: String,
    mount_kind: String,
    mount_options: String,
    public: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Process {
    id: String,
    pid: Option<u32>,
    started_at: Option<String>,
    finished_at: Option<String>,
}

impl Container {
    /// Sets the number of bytes of output that were dropped before they could be read, if any.
    pub(crate) fn with_dropped_output(self, bytes: u64) -> Self {
        Self { output_dropped_bytes: Some(bytes).filter(|bytes| *bytes > 0), ..self }
    }
}

impl From<&v1::Container> for Container {
    fn from(container: &v1::Container) -> Self {
        Self {
            id: container.id.clone(),
            state: state(container.state),
            output_dropped_bytes: None,
            image: container.image.as_ref().map(ImageInUse::from),
            volume_images: container.volume_images.iter().map(ImageInUse::from).collect(),
            spec: Spec::from(&container.spec.clone().unwrap_or_default()),
            files: container.files.iter().map(SecretFile::from).collect(),
            shim_pid: Some(container.shim_pid).filter(|pid| *pid != 0),
            processes: container.processes.iter().map(Process::from).collect(),
            created_at: time(container.created_at.as_ref()),
            started_at: time(container.started_at.as_ref()),
            finished_at: time(container.finished_at.as_ref()),
            files_generation: container.files_generation,
            files_updated_at: time(container.files_updated_at.as_ref()),
            id_range_start: Some(container.id_range_start).filter(|start| *start != 0),
            egress_generation: container.egress_generation,
            limits_generation: container.limits_generation,
            paused: container.paused,
            network_status: container.network_status.as_ref().map(networks::Status::from),
            ready: container.ready,
            check_statuses: container.check_statuses.iter().map(checks::CheckStatus::from).collect(),
            startup_passed: container.startup_passed,
            result: container.result.as_ref().map(Ending::from),
            steps: container.steps.iter().map(Step::from).collect(),
            restart: container.restart.as_ref().map(restarts::RestartStatus::from),
            reservation_expires_at: time(container.reservation_expires_at.as_ref()),
            quarantine: container.quarantine.as_ref().map(super::Quarantine::from),
            identity: container.identity.as_ref().map(identity::InstanceIdentity::from),
            secret_sources: container.secret_sources.iter().map(sources::SecretSource::from).collect(),
        }
    }
}

impl From<&v1::ImageInUse> for ImageInUse {
    fn from(image: &v1::ImageInUse) -> Self {
        Self { reference: image.reference.clone(), digest: image.digest.clone() }
    }
}

impl From<&v1::Container> for Rotated {
    fn from(container: &v1::Container) -> Self {
        Self {
            id: container.id.clone(),
            files_generation: container.files_generation,
            files_updated_at: time(container.files_updated_at.as_ref()),
        }
    }
}

impl From<&v1::ContainerSpec> for Spec {
    fn from(spec: &v1::ContainerSpec) -> Self {
        Self {
            rootfs: spec.rootfs.clone(),
            path: spec.path.clone(),
            argument_count: spec.argument_count,
            dir: spec.dir.clone(),
            environment_names: spec.environment_names.clone(),
            user: spec.user.clone(),
            uid: spec.uid,
            gid: spec.gid,
            limits: Limits::from(spec.limits.clone().unwrap_or_default()),
            nofile: spec.nofile,
            isolation: spec.into(),
            network: network(spec.network),
            connectivity: spec.into(),
            surroundings: spec.into(),
            host_options: spec.into(),
            remove_when_completed: spec.remove_when_completed,
            keep_until_deleted: spec.keep_until_deleted,
            grace_period_seconds: seconds(spec.grace_period),
            labels: sorted(&spec.labels),
            log_source: spec.log_source.clone(),
            suppress_log_output: spec.suppress_log_output,
            warnings: spec.warnings.clone(),
            outputs: spec.outputs.as_ref().map(outputs::Declared::from),
            secret_environment_names: spec.secret_environment_names.clone(),
            secret_argument_indices: spec.secret_argument_indices.clone(),
            redaction: word(spec.redaction().as_str_name(), "REDACTION_"),
            runtime_token_path: Some(spec.runtime_token_path.clone()).filter(|path| !path.is_empty()),
            writable_files: spec.writable_files.map(|writable| WritableFiles { bytes_max: writable.bytes_max }),
            log_limits: LogLimits {
                bytes_per_second: spec.log_limits.and_then(|limits| limits.bytes_per_second),
                lines_per_second: spec.log_limits.and_then(|limits| limits.lines_per_second),
            },
            log_tags: sorted(&spec.log_tags),
            checks: spec.checks.as_ref().map(checks::Checks::from),
            restart_policy: spec.restart_policy.as_ref().map(restarts::RestartPolicy::from),
            cgroup_parent: spec.cgroup_parent.clone(),
            log_file: Some(spec.log_file.clone()).filter(|path| !path.is_empty()),
            host_pid: spec.host_pid,
            host_ipc: spec.host_ipc,
            id_map: spec.id_map.as_ref().map(surroundings::IdMapping::from),
            pid_of: spec.pid_of.clone(),
            extra_groups: spec.extra_groups.clone(),
            strict_groups: spec.strict_groups,
            merge_groups: spec.merge_groups,
            group_ids: spec.group_ids.clone(),
            keep_environment: spec.keep_environment,
            hold: spec.hold,
            termination_message: spec.termination_message.as_ref().map(|message| TerminationMessage {
                path: message.path.clone(),
                bytes_max: message.bytes_max,
                fallback_to_logs: message.fallback_to_logs,
            }),
            pod: Some(spec.pod.clone()).filter(|pod| !pod.is_empty()),
        }
    }
}

impl From<&v1::SecretFile> for SecretFile {
    fn from(file: &v1::SecretFile) -> Self {
        Self {
            path: file.path.clone(),
            size: file.size,
            mode: format!("{:04o}", file.mode),
            uid: file.uid,
            gid: file.gid,
            mount_point: file.mount_point.clone(),
            mount_kind: mount_kind(file.mount_kind),
            mount_options: file.mount_options.clone(),
            public: file.public,
        }
    }
}

impl From<&v1::Process> for Process {
    fn from(process: &v1::Process) -> Self {
        Self {
            id: process.id.clone(),
            pid: Some(process.pid).filter(|pid| *pid != 0),
            started_at: time(process.started_at.as_ref()),
            finished_at: time(process.finished_at.as_ref()),
        }
    }
}

#[cfg(test)]
mod tests {
    use executor_client::v1::exit_status;
    use prost_types::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::view::json::tests::value;

    #[test]
    fn a_container_has_all_its_keys() {
        let container = v1::Container {
            id: "web-1".into(),
            state: v1::State::Completed.into(),
            created_at: Some(Timestamp { seconds: 1, nanos: 5 }),
            files: vec![v1::SecretFile {
                path: "/etc/a".into(),
                size: 3,
                mode: 0o600,
                mount_kind: v1::MountKind::TmpfsNoswap.into(),
                public: true,
                ..v1::SecretFile::default()
            }],
            spec: Some(v1::ContainerSpec {
                secret_environment_names: vec!["PW".into()],
                secret_argument_indices: vec![2],
                redaction: v1::Redaction::All.into(),
                ..v1::ContainerSpec::default()
            }),
            processes: vec![v1::Process { id: "main".into(), ..v1::Process::default() }],
            result: Some(v1::Result {
                exit: Some(v1::ExitStatus { status: Some(exit_status::Status::Signal(9)) }),
                oom_killed: true,
                timings: Some(v1::Timings {
                    run: Some(prost_types::Duration { seconds: 1, nanos: 500_000_000 }),
                    ..v1::Timings::default()
                }),
                ..v1::Result::default()
            }),
            ..v1::Container::default()
        };
        let json = value(&Container::from(&container));
        assert_eq!(json["state"], "completed");
        assert_eq!(json["created_at"], "1970-01-01T00:00:01.000000005Z");
        assert_eq!(json["started_at"], Value::Null);
        assert_eq!(json["spec"]["network"], "none");
        assert_eq!(json["files"][0]["mode"], "0600");
        assert_eq!(json["files"][0]["mount_kind"], "tmpfs_noswap");
        assert_eq!(json["files"][0]["public"], true);
        let spec = &json["spec"];
        assert_eq!(
            (&spec["secret_environment_names"], &spec["secret_argument_indices"]),
            (&json!(["PW"]), &json!([2]))
        );
        assert_eq!((&spec["redaction"], &spec["runtime_token_path"]), (&json!("all"), &Value::Null));
        assert_eq!(json["processes"][0]["pid"], Value::Null);
        let result = &json["result"];
        assert_eq!(
            (&result["exit_status"], &result["exit"]),
            (&json!(137), &json!({"code": null, "signal": 9, "signal_name": "SIGKILL"}))
        );
        assert_eq!((&result["failure"], &result["wipe"]), (&Value::Null, &Value::Null));
        assert_eq!(result["timings"]["run_seconds"], 1.5);
    }
}
