//! Defines the plan of a container: a validated request without its secrets.
//!
//! The plan is sent to the launcher, stored in records, and shown by `inspect`. Arguments, values of environment
//! variables and contents of files are not in the plan, but in payloads (see [`crate::payload`]). Only
//! [`crate::validate`] creates a plan.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ident::ContainerId;
use crate::limits::{PIDS_MAX, SIZE_MAX};

mod actions;
mod checks;
mod cni;
mod connectivity;
mod egress;
mod host_options;
mod isolation;
mod logging;
mod pods;
mod restart;
mod surroundings;
mod termination;
mod transfers;
mod volumes;

pub use actions::{Action, Actions, Messages, SETUP, SidecarLimits};
pub use checks::{
    Check, Checks, ExecProbe, HEALTHY_DEFAULT, HttpProbe, INTERVAL_HEALTHY, INTERVAL_UNHEALTHY, MonitorForm, Probe,
    START_TIMEOUT_DEFAULT, TIMEOUT_DEFAULT, UNHEALTHY_DEFAULT,
};
pub use cni::{CniArgument, CniBandwidth, CniOptions};
pub use connectivity::{Connectivity, Network, Protocol, PublishedPort};
pub use egress::{AddressRange, BadRange, EgressProtocol, EgressRule, IcmpMessages, PortRange};
pub use host_options::{DEV, Device, DevicePermissions, GIVEN_CGROUP, HostDevice, HostOptions, Ulimit};
pub use isolation::{IdMapping, Isolation, MASKED, READONLY, UserNamespace};
pub use logging::{LogLimits, Logging};
pub use pods::{POD_VOLUMES, PodRole, pod_volume_name, pod_volume_path};
pub use restart::{RESTART_DELAY_MAX_DEFAULT, RESTART_DELAY_MIN_DEFAULT, RestartMode, RestartPolicy};
pub use surroundings::{
    DOCKER_SOCKET, ExtraHost, FRESH_OF_HOST, SHM_BYTES_DEFAULT, Surroundings, TMPFS_MODE_DEFAULT, Tmpfs,
};
pub use termination::{
    TERMINATION_BYTES_DEFAULT, TERMINATION_DEV_PREFIX, TERMINATION_PATH_DEFAULT, TerminationMessage,
};
pub use transfers::{Checksum, ChecksumAlgorithm, Direction, PlannedTransfer};
pub use volumes::{
    EmptyVolume, HostPath, HostPathRule, HostVolume, Medium, Propagation, VOLUME_MODE_DEFAULT, Volume, VolumeImage,
    VolumeSource,
};

/// Source of a container's root file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rootfs {
    /// A read-only view of the host's programs with a minimal generated `/etc`.
    Host,
    /// An existing directory. The directory is never written to: the container's changes go to an upper layer.
    Dir(PathBuf),
    /// The layers of an image, which are shared with other containers of the image and never written to.
    Image(PlannedImage),
    /// An empty root for a pod, which runs no program.
    Pod,
}

/// A resolved image. The process settings of its configuration are already merged into the plan's fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedImage {
    /// Reference in the request.
    pub reference: String,
    /// Digest of the manifest, `sha256:HEX`.
    pub digest: String,
    /// diffIDs of the layers, the lowest first, each `sha256:HEX`.
    pub layers: Vec<String>,
    /// Directories that the image declares as volumes; each becomes writable.
    pub volumes: Vec<PathBuf>,
    /// Labels of the image, unchanged.
    pub labels: BTreeMap<String, String>,
}

impl std::fmt::Display for Rootfs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Dir(path) => write!(f, "dir:{}", path.display()),
            Self::Image(image) => f.write_str(&image.reference),
            Self::Pod => f.write_str("pod"),
        }
    }
}

/// Limits in force, with defaults filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of memory, swap included; 0 = no limit.
    pub memory_bytes: u64,
    /// Number of processes and threads; 0 = no limit.
    pub pids: u64,
    /// CPU time in thousandths of a CPU; 0 = no limit.
    pub cpu_millis: u64,
    /// Number of open files of a process.
    pub nofile: u64,
    /// Bytes that the container may add to its root file system; 0 = no limit.
    #[serde(default)]
    pub disk_bytes: u64,
    /// Weight for the distribution of CPU time, 1 to 10000; 0 = the kernel's default.
    #[serde(default)]
    pub cpu_weight: u32,
    /// Weight for the distribution of disk bandwidth, 1 to 10000; 0 = the kernel's default.
    #[serde(default)]
    pub io_weight: u32,
    /// Bytes of swap beyond `memory_bytes`; -1 = no limit. Unset: swap counts against `memory_bytes`.
    #[serde(default)]
    pub swap_bytes: Option<i64>,
    /// Bytes of memory that the kernel protects from reclaim when memory runs short; 0 = none.
    #[serde(default)]
    pub memory_reservation_bytes: u64,
    /// Period of `cpu_quota_us` in microseconds; 0 = 100,000.
    #[serde(default)]
    pub cpu_period_us: u64,
    /// CPU time in each period, in microseconds, instead of `cpu_millis`; 0 = no limit.
    #[serde(default)]
    pub cpu_quota_us: u64,
    /// Weight for the distribution of CPU time in the unit of cgroup v1 (`cpu.shares`), 2 to 262144, instead of
    /// `cpu_weight`; 0 = the kernel's default.
    #[serde(default)]
    pub cpu_shares: u32,
}

impl Limits {
    /// Returns the memory limit in bytes. Without a limit, returns more than the memory of any machine.
    pub fn memory_max(&self) -> u64 {
        if self.memory_bytes == 0 { SIZE_MAX } else { self.memory_bytes }
    }

    /// Returns the limit on processes and threads, or the kernel's own limit if none is set.
    pub fn pids_max(&self) -> u64 {
        if self.pids == 0 { PIDS_MAX } else { self.pids }
    }

    /// Returns only the limits on CPU time.
    pub fn processors(&self) -> Self {
        Self {
            memory_bytes: 0,
            pids: 0,
            nofile: 0,
            disk_bytes: 0,
            io_weight: 0,
            swap_bytes: None,
            memory_reservation_bytes: 0,
            ..*self
        }
    }
}

/// A user or group as written in the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Principal {
    /// A numeric id.
    Id(u32),
    /// A name, to be resolved in the rootfs.
    Name(String),
}

/// User and optional group of a process (`user[:group]`); root if the request names no user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRef {
    /// User id or name.
    pub user: Principal,
    /// Group id or name; if unset, the user's own group. See [`Memberships`] for the groups of /etc/group.
    pub group: Option<Principal>,
}

/// Rule for the supplementary groups that the container's /etc/group lists for a process's user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memberships {
    /// Processes get the groups unless their user is specified with a group, as with Docker.
    #[default]
    UnlessGroup,
    /// Processes always get the groups, as with Kubernetes' `supplementalGroupsPolicy: Merge`.
    Always,
    /// No process gets the groups.
    Never,
}

impl std::fmt::Display for Principal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl std::fmt::Display for UserRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.user.fmt(f)?;
        self.group.as_ref().map_or(Ok(()), |group| write!(f, ":{group}"))
    }
}

/// A file of the request (`volume_mounted_files`) or the runtime token's file, without its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedFile {
    /// Absolute path in the container; each component is validated.
    pub path: PathBuf,
    /// Size of the content in bytes.
    pub size: u64,
    /// Field path of the entry in the request, for errors: `volume_mounted_files[2].path`.
    pub field: String,
    /// True if the content is not masked in logs.
    #[serde(default)]
    pub public: bool,
    /// True if this is the file of the runtime token, whose content the shim generates.
    #[serde(default)]
    pub token: bool,
    /// Permission bits of the file.
    #[serde(default = "file_mode")]
    pub mode: u32,
    /// Group; if unset, the group of the process's user.
    #[serde(default)]
    pub group: Option<Principal>,
}

/// Default permission bits of a secret file: only its owner can access it.
pub const FILE_MODE: u32 = 0o600;

fn file_mode() -> u32 {
    FILE_MODE
}

impl PlannedFile {
    /// Creates the plan of a secret file with the default mode and group.
    pub fn private(path: impl Into<PathBuf>, size: u64, field: impl Into<String>) -> Self {
        let (path, field) = (path.into(), field.into());
        Self { path, size, field, public: false, token: false, mode: FILE_MODE, group: None }
    }

    /// Returns the field of the file's path in the request.
    pub fn path_field(&self) -> String {
        if self.token { self.field.clone() } else { format!("{}.path", self.field) }
    }
}

/// Rule for masking secret values in a container's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Redaction {
    /// Mask values of 8 bytes or more.
    #[default]
    Auto,
    /// Mask values of 4 bytes or more.
    All,
    /// Mask nothing.
    None,
}

/// Outputs to be captured after the process has exited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedOutputs {
    /// Files or directory to capture.
    pub source: OutputSource,
    /// Maximum bytes of all outputs together.
    pub bytes_max: u64,
}

/// Files or directory that are captured as outputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutputSource {
    /// The files with these absolute paths.
    Files(Vec<PathBuf>),
    /// All files below the directory with this absolute path.
    Directory(PathBuf),
}

/// Settings of secret files that the process may change. The process may also create files next to these files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritableFiles {
    /// Bytes that the process may write beyond the files of the request.
    pub bytes_max: u64,
}

/// Layout of secret files in their file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Generations, read-only for the process: one rename replaces the old generation with the new generation.
    Generations,
    /// Each file at its own path, writable by the process, with a second name that the process cannot remove.
    Writable,
}

/// A process to run in the container. The id is `main` for a single run action, and the path of the run action in an
/// action tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedProcess {
    /// Process id, unique within the container.
    pub id: String,
    /// Path or name of the program, as in the request.
    pub path: String,
    /// Number of arguments, without the program's name.
    pub argument_count: u32,
    /// Working directory of the process.
    pub dir: String,
    /// Names of the process's environment variables that are not secret.
    pub environment_names: Vec<String>,
    /// Names of the process's secret environment variables.
    #[serde(default)]
    pub secret_environment_names: Vec<String>,
    /// Indices of secret arguments, in ascending order.
    #[serde(default)]
    pub secret_arguments: Vec<u32>,
    /// Log source of the process's output.
    pub log_source: String,
    /// True if the process's output is not logged.
    pub suppress_log_output: bool,
    /// User of a process in a tree of actions; if unset, the plan's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserRef>,
    /// Limit on open files of a process in a tree of actions; if unset, the plan's limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nofile: Option<u64>,
    /// Secret files of a process in a tree of actions. The files exist while the process runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<PlannedFile>,
}

/// Id of the only process of a single RunAction.
pub const MAIN_PROCESS: &str = "main";

/// All settings of a container that are not secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Container id, unique on the node.
    pub id: ContainerId,
    /// Source of the root file system.
    pub rootfs: Rootfs,
    /// User of the process.
    pub user: UserRef,
    /// Limits on resources.
    pub limits: Limits,
    /// Kind of network.
    pub network: Network,
    /// Time between the stop signal and SIGKILL.
    pub grace: Duration,
    /// Labels of the request.
    pub labels: BTreeMap<String, String>,
    /// Secret files. If the container has a runtime token, the last file holds the token.
    pub files: Vec<PlannedFile>,
    /// Directories that hold only secret files. A directory that is missing in the root file system is mounted as a
    /// whole.
    #[serde(default)]
    pub file_directories: Vec<PathBuf>,
    /// Set if the process may change its secret files; otherwise the files are read-only.
    #[serde(default)]
    pub writable_files: Option<WritableFiles>,
    /// Rule for masking secrets in the output.
    #[serde(default)]
    pub redaction: Redaction,
    /// Outputs to be captured after the process has exited.
    #[serde(default)]
    pub outputs: Option<PlannedOutputs>,
    /// Isolation of the container from the host.
    #[serde(default)]
    pub isolation: Isolation,
    /// Network settings, except the kind of network.
    #[serde(default)]
    pub connectivity: Connectivity,
    /// Mounts, kernel settings and host names.
    #[serde(default = "surroundings::legacy_default")]
    pub surroundings: Surroundings,
    /// Volumes, in the order of the request.
    #[serde(default)]
    pub volumes: Vec<Volume>,
    /// CPUs, devices and attributes of processes.
    #[serde(default)]
    pub host_options: HostOptions,
    /// True if the process has a terminal.
    #[serde(default)]
    pub terminal: bool,
    /// Initial rows and columns of the terminal; 0 for the default.
    #[serde(default)]
    pub window: (u16, u16),
    /// True if the process's standard input comes from attached clients.
    #[serde(default)]
    pub stdin: bool,
    /// True if the process's output waits for the first lossless client.
    #[serde(default)]
    pub await_reader: bool,
    /// Number of the signal that Stop sends before SIGKILL.
    #[serde(default = "sigterm")]
    pub stop_signal: u32,
    /// True if the container is deleted as soon as it is completed.
    #[serde(default)]
    pub remove_when_completed: bool,
    /// True if the completed container is kept until a client deletes the container.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_until_deleted: bool,
    /// True if the process starts only after a separate Start request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
    /// Limits and tags of the log.
    #[serde(default)]
    pub logging: Logging,
    /// Health checks of the running container.
    #[serde(default)]
    pub checks: Option<Checks>,
    /// Supplementary groups of every process, in addition to the groups of its user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_groups: Vec<Principal>,
    /// True if processes have no supplementary groups other than `extra_groups`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict_groups: bool,
    /// True if processes get their user's groups from the container's /etc/group even if the user is specified with a
    /// group.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub merge_groups: bool,
    /// True if the environment is kept in the container's secret volume, for processes that are executed later.
    #[serde(default)]
    pub keep_environment: bool,
    /// File for the termination message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_message: Option<TerminationMessage>,
    /// Processes of the container.
    pub processes: Vec<PlannedProcess>,
    /// Downloads and uploads of the action tree, in tree order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transfers: Vec<PlannedTransfer>,
    /// Tree of actions with their order; unset for a single run action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actions: Option<Actions>,
    /// Role of the container in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRole>,
}

/// Number of the default stop signal, SIGTERM.
pub const SIGTERM: u32 = 15;

fn sigterm() -> u32 {
    SIGTERM
}

impl Plan {
    /// Returns the rule for supplementary groups from the container's /etc/group.
    pub fn memberships(&self) -> Memberships {
        match (self.strict_groups, self.merge_groups) {
            (true, _) => Memberships::Never,
            (false, true) => Memberships::Always,
            (false, false) => Memberships::UnlessGroup,
        }
    }

    /// Returns the process of a single run action. When this process exits and is not restarted, the container exits.
    pub fn main(&self) -> Option<&PlannedProcess> {
        match &self.actions {
            Some(actions) if actions.is_lone_run() => self.processes.first(),
            Some(_) => None,
            None => self.processes.iter().find(|process| process.id == MAIN_PROCESS),
        }
    }

    /// Returns true if exits of processes are logged, as in Diego: with a tree of actions or with a monitor. The log of
    /// a single run contains only the output of its process.
    pub fn logs_exits(&self) -> bool {
        self.main().is_none() || self.checks.as_ref().is_some_and(|checks| checks.monitor != MonitorForm::None)
    }

    /// Returns the restart policy, if there is one.
    pub fn restart(&self) -> Option<&RestartPolicy> {
        self.actions.as_ref()?.restart.as_ref()
    }

    /// Returns true if the secret volume holds secrets that no process of the container can see: secrets of steps that
    /// have not started, or the kept environment.
    pub fn has_hidden_secrets(&self) -> bool {
        self.actions.is_some() || self.keep_environment
    }

    /// Returns the index of the process whose environment is used as the container's environment.
    pub fn first_process(&self) -> Option<usize> {
        match &self.actions {
            Some(actions) => actions.first_process(),
            None => self.processes.iter().position(|process| process.id == MAIN_PROCESS),
        }
    }

    /// Returns the file of the runtime token, if there is one.
    pub fn token_file(&self) -> Option<&PlannedFile> {
        self.files.last().filter(|file| file.token)
    }

    /// Returns the layout of the secret files in their file system.
    pub fn layout(&self) -> Layout {
        if self.writable_files.is_some() { Layout::Writable } else { Layout::Generations }
    }

    /// Returns the files whose content comes with the request, in the order of the files payload.
    pub fn given_files(&self) -> &[PlannedFile] {
        &self.files[..self.files.len() - usize::from(self.token_file().is_some())]
    }
}
