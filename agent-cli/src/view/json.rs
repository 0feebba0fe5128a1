//! JSON: the same names as in the interface, every key always there.
//!
//! Times are RFC 3339 in UTC with nanoseconds, durations are seconds in keys that end in `_seconds`, sizes are
//! bytes in keys that end in `_bytes`, enums are lower-case words, permission bits are an octal string, and
//! what is not known is null. [`Ending::exit_status`] is the status that `agent-cli wait` exits with.

mod isolation;
mod networks;
mod outputs;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use executor_proto::v1::{self, LogStream, exit_status};
use prost_types::Timestamp;
use serde::Serialize;

use super::human::{event_kind, mount_kind, network, state, system_time, word};
use crate::exit::Outcome;
use crate::signals;

pub(crate) use outputs::Copied;

#[derive(Serialize)]
pub(crate) struct Container {
    id: String,
    state: String,
    /// What ran, whatever its name means by now.
    image: Option<ImageInUse>,
    spec: Spec,
    files: Vec<SecretFile>,
    processes: Vec<Process>,
    created_at: Option<String>,
    started_at: Option<String>,
    finished_at: Option<String>,
    files_generation: u64,
    files_updated_at: Option<String>,
    id_range_start: Option<u32>,
    network_status: Option<networks::Status>,
    result: Option<Ending>,
}

#[derive(Serialize)]
struct ImageInUse {
    reference: String,
    digest: String,
}

/// What `rotate` says of the container.
#[derive(Serialize)]
pub(crate) struct Rotated {
    id: String,
    files_generation: u64,
    files_updated_at: Option<String>,
}

#[derive(Serialize)]
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
    isolation: isolation::Isolation,
    network: String,
    connectivity: networks::Connectivity,
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
}

#[derive(Serialize)]
struct Limits {
    memory_bytes: u64,
    pids: u64,
    cpu_millis: u64,
    nofile: u64,
    disk_bytes: u64,
    cpu_weight: u32,
    io_weight: u32,
}

#[derive(Serialize)]
struct SecretFile {
    path: String,
    size_bytes: u64,
    mode: String,
    uid: u32,
    gid: u32,
    mount_point: String,
    mount_kind: String,
    mount_options: String,
    public: bool,
}

#[derive(Serialize)]
struct Process {
    id: String,
    pid: Option<u32>,
    started_at: Option<String>,
    finished_at: Option<String>,
}

#[derive(Serialize)]
pub(crate) struct Ending {
    pub(crate) exit_status: u8,
    exit_code: Option<i32>,
    signal: Option<i32>,
    signal_name: Option<String>,
    oom_killed: bool,
    stopped: bool,
    failure: Option<Failure>,
    timings: Option<Timings>,
    wipe: Option<Wipe>,
    outputs: Option<outputs::Summary>,
}

#[derive(Serialize)]
struct Failure {
    kind: String,
    message: String,
    errno: Option<i32>,
}

#[derive(Serialize)]
struct Timings {
    prepare_seconds: Option<f64>,
    start_seconds: Option<f64>,
    run_seconds: Option<f64>,
    finish_seconds: Option<f64>,
}

#[derive(Serialize)]
struct Wipe {
    files: u32,
    size_bytes: u64,
    method: String,
    finished_at: Option<String>,
    verified: bool,
    wiped_by: String,
}

/// One object of `logs --json`.
#[derive(Serialize)]
pub(crate) struct LogEntry {
    time: Option<String>,
    stream: &'static str,
    log_source: String,
    /// `utf-8` or `base64`.
    encoding: &'static str,
    data: String,
}

/// One object of `events --json`.
#[derive(Serialize)]
pub(crate) struct Event {
    cursor: Option<u64>,
    time: Option<String>,
    container_id: Option<String>,
    kind: String,
    result: Option<Ending>,
    /// With `files_updated`.
    files_generation: Option<u64>,
    /// Events before this one are lost to this caller: they are no longer kept.
    gap: bool,
}

/// Of `secrets --json`.
#[derive(Serialize)]
pub(crate) struct Secrets {
    environment: Vec<SecretVariable>,
    arguments: Vec<SecretArgument>,
    files: Vec<SecretContent>,
}

#[derive(Serialize)]
struct SecretVariable {
    name: String,
    value: String,
}

#[derive(Serialize)]
struct SecretArgument {
    index: u32,
    value: String,
}

#[derive(Serialize)]
struct SecretContent {
    path: String,
    public: bool,
    /// `utf-8` or `base64`.
    encoding: &'static str,
    data: String,
}

#[derive(Serialize)]
pub(crate) struct Info {
    version: String,
    socket: String,
    kernel: String,
    cgroups: String,
    secret_mount_kind: String,
    launcher_connected: bool,
    started_at: Option<String>,
    uid: u32,
    cursor: u64,
    run_dir: String,
    state_dir: String,
    files_root: String,
    total: Option<Capacity>,
    remaining: Option<Capacity>,
    containers: BTreeMap<String, u32>,
}

#[derive(Serialize)]
struct Capacity {
    memory_bytes: u64,
    pids: u64,
    containers: u64,
    disk_bytes: u64,
}

/// What became of one container of `rm`, of the signal of `signal`.
#[derive(Serialize)]
pub(crate) struct Done {
    pub(crate) id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deleted: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) signal: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// A document for a person's eyes too.
pub(crate) fn document(value: &impl Serialize) -> String {
    // The types above have string keys and finite numbers only: what could fail is not there.
    serde_json::to_string_pretty(value).map(|text| text + "\n").unwrap_or_default()
}

/// An object on a line.
pub(crate) fn line(value: &impl Serialize) -> String {
    serde_json::to_string(value).map(|text| text + "\n").unwrap_or_default()
}

fn time(timestamp: Option<&Timestamp>) -> Option<String> {
    timestamp.and_then(system_time).map(|time| humantime::format_rfc3339_nanos(time).to_string())
}

fn seconds(duration: Option<prost_types::Duration>) -> Option<f64> {
    duration.and_then(|duration| Duration::try_from(duration).ok()).map(|duration| duration.as_secs_f64())
}

fn sorted<V: Clone>(map: &HashMap<String, V>) -> BTreeMap<String, V> {
    map.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

impl From<&v1::Container> for Container {
    fn from(container: &v1::Container) -> Self {
        Self {
            id: container.id.clone(),
            state: state(container.state),
            image: container
                .image
                .as_ref()
                .map(|image| ImageInUse { reference: image.reference.clone(), digest: image.digest.clone() }),
            spec: Spec::from(&container.spec.clone().unwrap_or_default()),
            files: container.files.iter().map(SecretFile::from).collect(),
            processes: container.processes.iter().map(Process::from).collect(),
            created_at: time(container.created_at.as_ref()),
            started_at: time(container.started_at.as_ref()),
            finished_at: time(container.finished_at.as_ref()),
            files_generation: container.files_generation,
            files_updated_at: time(container.files_updated_at.as_ref()),
            id_range_start: Some(container.id_range_start).filter(|start| *start != 0),
            network_status: container.network_status.as_ref().map(networks::Status::from),
            result: container.result.as_ref().map(Ending::from),
        }
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
        let limits = spec.limits.unwrap_or_default();
        Self {
            rootfs: spec.rootfs.clone(),
            path: spec.path.clone(),
            argument_count: spec.argument_count,
            dir: spec.dir.clone(),
            environment_names: spec.environment_names.clone(),
            user: spec.user.clone(),
            uid: spec.uid,
            gid: spec.gid,
            limits: Limits {
                memory_bytes: limits.memory_bytes,
                pids: limits.pids,
                cpu_millis: limits.cpu_millis,
                nofile: spec.nofile,
                disk_bytes: limits.disk_bytes,
                cpu_weight: limits.cpu_weight,
                io_weight: limits.io_weight,
            },
            isolation: spec.into(),
            network: network(spec.network),
            connectivity: spec.into(),
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
        }
    }
}

impl From<&v1::SecretFile> for SecretFile {
    fn from(file: &v1::SecretFile) -> Self {
        Self {
            path: file.path.clone(),
            size_bytes: file.size,
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

impl From<&v1::Result> for Ending {
    fn from(result: &v1::Result) -> Self {
        let (exit_code, signal) = match result.exit.and_then(|exit| exit.status) {
            Some(exit_status::Status::Code(code)) => (Some(code), None),
            Some(exit_status::Status::Signal(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        Self {
            exit_status: Outcome::of(Some(result)).status(),
            exit_code,
            signal,
            signal_name: signal.map(signals::name),
            oom_killed: result.oom_killed,
            stopped: result.stopped,
            failure: result.failure.as_ref().map(|failure| Failure {
                kind: word(failure.kind().as_str_name(), "KIND_"),
                message: failure.message.clone(),
                errno: Some(failure.errno).filter(|errno| *errno != 0),
            }),
            timings: result.timings.map(|timings| Timings {
                prepare_seconds: seconds(timings.prepare),
                start_seconds: seconds(timings.start),
                run_seconds: seconds(timings.run),
                finish_seconds: seconds(timings.finish),
            }),
            wipe: result.wipe.as_ref().map(|wipe| Wipe {
                files: wipe.files,
                size_bytes: wipe.bytes,
                method: wipe.method.clone(),
                finished_at: time(wipe.finished_at.as_ref()),
                verified: wipe.verified,
                wiped_by: wipe.wiped_by.clone(),
            }),
            outputs: result.outputs.as_ref().map(outputs::Summary::from),
        }
    }
}

impl From<v1::GetSecretsResponse> for Secrets {
    fn from(response: v1::GetSecretsResponse) -> Self {
        let variable = |v1::EnvironmentVariable { name, value }| SecretVariable { name, value };
        let argument = |v1::SecretArgument { index, value }| SecretArgument { index, value };
        let file = |v1::File { path, content, public }| {
            let (encoding, data) = encoded(content);
            SecretContent { path, public, encoding, data }
        };
        Self {
            environment: response.environment.into_iter().map(variable).collect(),
            arguments: response.arguments.into_iter().map(argument).collect(),
            files: response.files.into_iter().map(file).collect(),
        }
    }
}

/// Bytes as text where they are text, and how.
pub(crate) fn encoded(bytes: Vec<u8>) -> (&'static str, String) {
    match String::from_utf8(bytes) {
        Ok(text) => ("utf-8", text),
        Err(binary) => ("base64", BASE64.encode(binary.as_bytes())),
    }
}

impl From<v1::StreamLogsResponse> for LogEntry {
    fn from(entry: v1::StreamLogsResponse) -> Self {
        let stream = match entry.stream() {
            LogStream::Stdout => "stdout",
            LogStream::Stderr => "stderr",
            LogStream::Executor => "executor",
            LogStream::Unspecified => "unspecified",
        };
        let (encoding, data) = encoded(entry.data);
        Self { time: time(entry.time.as_ref()), stream, log_source: entry.log_source, encoding, data }
    }
}

impl From<&v1::WatchEventsResponse> for Event {
    fn from(response: &v1::WatchEventsResponse) -> Self {
        let event = response.event.as_ref();
        Self {
            cursor: event.map(|event| event.cursor),
            time: time(event.and_then(|event| event.time.as_ref())),
            container_id: event.map(|event| event.container_id.clone()),
            kind: event.map_or_else(|| "gap".into(), |event| event_kind(event.kind)),
            result: event.and_then(|event| event.result.as_ref()).map(Ending::from),
            files_generation: event.map(|event| event.files_generation).filter(|generation| *generation > 0),
            gap: response.gap,
        }
    }
}

impl Info {
    pub(crate) fn new(info: &v1::InfoResponse, socket: String) -> Self {
        let capacity = |capacity: v1::Capacity| Capacity {
            memory_bytes: capacity.memory_bytes,
            pids: capacity.pids,
            containers: capacity.containers,
            disk_bytes: capacity.disk_bytes,
        };
        Self {
            version: info.version.clone(),
            socket,
            kernel: info.kernel.clone(),
            cgroups: info.cgroups.clone(),
            secret_mount_kind: mount_kind(info.secret_mount_kind),
            launcher_connected: info.launcher_connected,
            started_at: time(info.started_at.as_ref()),
            uid: info.uid,
            cursor: info.cursor,
            run_dir: info.run_dir.clone(),
            state_dir: info.state_dir.clone(),
            files_root: info.files_root.clone(),
            total: info.total.map(capacity),
            remaining: info.remaining.map(capacity),
            containers: sorted(&info.containers),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn value(value: &impl Serialize) -> Value {
        serde_json::from_str(&document(value)).unwrap()
    }

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
        assert_eq!((&result["exit_status"], &result["signal_name"]), (&json!(137), &json!("SIGKILL")));
        assert_eq!(
            (&result["exit_code"], &result["failure"], &result["wipe"]),
            (&Value::Null, &Value::Null, &Value::Null)
        );
        assert_eq!(result["timings"]["run_seconds"], 1.5);
    }

    #[test]
    fn log_entries_are_text_where_they_can_be() {
        let entry = |data: &[u8]| v1::StreamLogsResponse {
            stream: LogStream::Stderr.into(),
            data: data.to_vec(),
            ..v1::StreamLogsResponse::default()
        };
        let text = line(&LogEntry::from(entry(b"a\nb")));
        assert_eq!(
            text,
            "{\"time\":null,\"stream\":\"stderr\",\"log_source\":\"\",\"encoding\":\"utf-8\",\"data\":\"a\\nb\"}\n"
        );
        let binary = value(&LogEntry::from(entry(b"\xff\x00")));
        assert_eq!((&binary["encoding"], &binary["data"]), (&json!("base64"), &json!("/wA=")));
    }

    #[test]
    fn a_gap_is_an_object_too() {
        let gap = value(&Event::from(&v1::WatchEventsResponse { event: None, gap: true }));
        assert_eq!((&gap["kind"], &gap["gap"], &gap["cursor"]), (&json!("gap"), &json!(true), &Value::Null));
    }
}
