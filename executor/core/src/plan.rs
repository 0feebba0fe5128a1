//! The plan of a container: a validated request without its secrets.
//!
//! It is what the launcher gets to see, what records hold and what `inspect` shows. Arguments, values of
//! environment variables and contents of files travel beside it (see [`crate::payload`]) and are in no plan;
//! only [`crate::validate`] makes one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ident::ContainerId;

mod actions;
mod checks;
mod connectivity;
mod egress;
mod host_options;
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
pub use connectivity::{Connectivity, Network, Protocol, PublishedPort};
pub use egress::{AddressRange, BadRange, EgressProtocol, EgressRule, IcmpMessages, PortRange};
pub use host_options::{Device, DevicePermissions, HostDevice, HostOptions, Ulimit};
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
pub use volumes::{EmptyVolume, HostVolume, Medium, VOLUME_MODE_DEFAULT, Volume, VolumeImage, VolumeSource};

/// Source of a container's root file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rootfs {
    /// A read-only view of the host's programs with a minimal `/etc` of our own.
    Host,
    /// A prepared directory, never written to: the container's changes go to an upper layer.
    Dir(PathBuf),
    /// The layers of an image, shared with its other containers, never written to.
    Image(PlannedImage),
    /// An empty root: that of a pod, which runs no program.
    Pod,
}

/// An image, by what it is made of. What its configuration says of the process is in the plan's own fields by now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedImage {
    /// Reference in the request.
    pub reference: String,
    /// Digest of the manifest, `sha256:HEX`.
    pub digest: String,
    /// diffIDs of its layers, the lowest first, each `sha256:HEX`.
    pub layers: Vec<String>,
    /// Directories that it declares as volumes: a writable place each.
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

/// Limits in force: defaults are filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of memory, swap included.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Thousandths of a processor; 0 = no limit.
    pub cpu_millis: u64,
    /// Open files of a process.
    pub nofile: u64,
    /// Bytes that the container may add to its root file system; 0 = no limit.
    #[serde(default)]
    pub disk_bytes: u64,
    /// Share of the processors, 1 to 10000; 0 = as the kernel has it.
    #[serde(default)]
    pub cpu_weight: u32,
    /// Share of the disks likewise.
    #[serde(default)]
    pub io_weight: u32,
    /// Bytes of swap beyond `memory_bytes`; -1 = no limit. Unset: swap counts against `memory_bytes`.
    #[serde(default)]
    pub swap_bytes: Option<i64>,
    /// Bytes of memory that the kernel leaves to the container when memory runs short; 0 = none.
    #[serde(default)]
    pub memory_reservation_bytes: u64,
}

impl Limits {
    /// Returns the limits on processor time, and no other.
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

/// A user or group as the request names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Principal {
    /// A number.
    Id(u32),
    /// A name, to be looked up in the rootfs.
    Name(String),
}

/// `user[:group]`; root when the request says nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRef {
    /// The user.
    pub user: Principal,
    /// The group; the user's own where none is named.
    pub group: Option<Principal>,
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

/// A volume mounted file, without its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedFile {
    /// Absolute, in the container; each component was checked.
    pub path: PathBuf,
    /// Size of the content in bytes.
    pub size: u64,
    /// The request's own name of the entry, for errors: `volume_mounted_files[2].path`.
    pub field: String,
    /// True when the content is not masked in logs.
    #[serde(default)]
    pub public: bool,
    /// True for the file of the runtime token, whose content the shim makes.
    #[serde(default)]
    pub token: bool,
    /// Permission bits.
    #[serde(default = "file_mode")]
    pub mode: u32,
    /// Group; that of the process's user if there is none.
    #[serde(default)]
    pub group: Option<Principal>,
}

/// Permission bits of a secret file where nobody says otherwise: its owner's alone.
pub const FILE_MODE: u32 = 0o600;

fn file_mode() -> u32 {
    FILE_MODE
}

impl PlannedFile {
    /// A secret file, as private as it is where nobody says otherwise.
    pub fn private(path: impl Into<PathBuf>, size: u64, field: impl Into<String>) -> Self {
        let (path, field) = (path.into(), field.into());
        Self { path, size, field, public: false, token: false, mode: FILE_MODE, group: None }
    }

    /// The request's own name of its path.
    pub fn path_field(&self) -> String {
        if self.token { self.field.clone() } else { format!("{}.path", self.field) }
    }
}

/// Rule for masking secret values in a container's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Redaction {
    /// Values of 8 bytes or more.
    #[default]
    Auto,
    /// Values of 4 bytes or more.
    All,
    /// Mask nothing.
    None,
}

/// Outputs to be captured at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedOutputs {
    /// Files to capture.
    pub source: OutputSource,
    /// Maximum bytes of all of them.
    pub bytes_max: u64,
}

/// Source of outputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutputSource {
    /// These, by their absolute paths.
    Files(Vec<PathBuf>),
    /// Everything below this directory.
    Directory(PathBuf),
}

/// Secret files that the process may change, with what it writes beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritableFiles {
    /// Bytes that the process may write beyond the files of the request.
    pub bytes_max: u64,
}

/// Layout of secret files in their file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Generations, read-only for the process: a new one replaces the old one by one rename.
    Generations,
    /// Each file at its own path, for the process to change, with a second name that the process cannot remove.
    Writable,
}

/// A process to run in the container: the one of a single run action, called `main`, or one of a tree of actions, whose id is
/// the path of its action.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedProcess {
    /// Unique within the container.
    pub id: String,
    /// The program as requested.
    pub path: String,
    /// Number of arguments, without the program's name.
    pub argument_count: u32,
    /// Working directory.
    pub dir: String,
    /// Names of its environment variables, but for the secret ones.
    pub environment_names: Vec<String>,
    /// Names of its secret environment variables.
    #[serde(default)]
    pub secret_environment_names: Vec<String>,
    /// Indices of secret arguments, in ascending order.
    #[serde(default)]
    pub secret_arguments: Vec<u32>,
    /// Marks its log lines.
    pub log_source: String,
    /// True when the output is discarded.
    pub suppress_log_output: bool,
    /// User, in a tree of actions; that of the plan otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserRef>,
    /// Open files, in a tree of actions; those of the plan's limits otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nofile: Option<u64>,
    /// Secret files that are there while it runs, in a tree of actions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<PlannedFile>,
}

/// Id of the one process that a RunAction makes.
pub const MAIN_PROCESS: &str = "main";

/// User namespace of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UserNamespace {
    /// A user namespace of its own, with a range of the host's ids that no other container has.
    #[default]
    Own,
    /// The host's ids.
    Host,
}

/// Isolation as asked for; the default is the strictest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Isolation {
    /// User namespace.
    pub user_namespace: UserNamespace,
    /// All capabilities, no seccomp filter, no masked paths.
    pub privileged: bool,
    /// Capabilities that are added, in the kernel's spelling (`CAP_CHOWN`), sorted; `ALL` for every one.
    pub capabilities_added: Vec<String>,
    /// Capabilities that are taken away first, likewise.
    pub capabilities_dropped: Vec<String>,
    /// The Docker daemon's socket of the host is in the container.
    pub docker_socket: bool,
    /// The root file system cannot be written to.
    pub read_only_rootfs: bool,
    /// A filter of the request's own, as JSON; empty for the default one.
    pub seccomp_profile: String,
}

/// Everything about a container that may be known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Container id.
    pub id: ContainerId,
    /// Root file system.
    pub rootfs: Rootfs,
    /// User of the process.
    pub user: UserRef,
    /// Limits on resources.
    pub limits: Limits,
    /// Kind of network.
    pub network: Network,
    /// Time between the stop signal and SIGKILL.
    pub grace: Duration,
    /// Labels of the control plane.
    pub labels: BTreeMap<String, String>,
    /// Secret files. The runtime token's is the last one, if there is one.
    pub files: Vec<PlannedFile>,
    /// Directories that hold such files alone, and are mounted as a whole where the root file system lacks them.
    #[serde(default)]
    pub file_directories: Vec<PathBuf>,
    /// Set when the process may change its secret files; otherwise they are read-only.
    #[serde(default)]
    pub writable_files: Option<WritableFiles>,
    /// Masking of the output.
    #[serde(default)]
    pub redaction: Redaction,
    /// Outputs to be captured at the end.
    #[serde(default)]
    pub outputs: Option<PlannedOutputs>,
    /// Isolation from the host.
    #[serde(default)]
    pub isolation: Isolation,
    /// Network settings.
    #[serde(default)]
    pub connectivity: Connectivity,
    /// Mounts, kernel settings and host names.
    #[serde(default = "surroundings::before")]
    pub surroundings: Surroundings,
    /// Volumes, in the order of the request.
    #[serde(default)]
    pub volumes: Vec<Volume>,
    /// Processors, devices and attributes of processes.
    #[serde(default)]
    pub host_options: HostOptions,
    /// True when the process has a terminal.
    #[serde(default)]
    pub terminal: bool,
    /// Rows and columns of the terminal when the process starts; 0 for the default.
    #[serde(default)]
    pub window: (u16, u16),
    /// True when the process's standard input comes from attached clients.
    #[serde(default)]
    pub stdin: bool,
    /// True when the output waits for the first lossless client.
    #[serde(default)]
    pub await_reader: bool,
    /// Signal that Stop sends first.
    #[serde(default = "sigterm")]
    pub stop_signal: u32,
    /// True when the container is deleted as soon as it is completed.
    #[serde(default)]
    pub remove_when_completed: bool,
    /// Limits and tags of the log.
    #[serde(default)]
    pub logging: Logging,
    /// Checks of the running container.
    #[serde(default)]
    pub checks: Option<Checks>,
    /// Supplementary groups of every process, beside those of its user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_groups: Vec<Principal>,
    /// True when the environment stays in the container's volume, for processes that are executed later.
    #[serde(default)]
    pub keep_environment: bool,
    /// File for the process's message about its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_message: Option<TerminationMessage>,
    /// Processes of the container.
    pub processes: Vec<PlannedProcess>,
    /// Downloads and uploads of the tree of actions, in its order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transfers: Vec<PlannedTransfer>,
    /// Order in which they run, where there is more than a single run action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actions: Option<Actions>,
    /// Part of the container in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRole>,
}

/// Default of the signal that Stop sends first: SIGTERM.
pub const SIGTERM: u32 = 15;

fn sigterm() -> u32 {
    SIGTERM
}

impl Plan {
    /// The process of a single run action, whose end is the container's, or after which its restart policy decides.
    pub fn main(&self) -> Option<&PlannedProcess> {
        match &self.actions {
            Some(actions) if actions.is_lone_run() => self.processes.first(),
            Some(_) => None,
            None => self.processes.iter().find(|process| process.id == MAIN_PROCESS),
        }
    }

    /// True if the exits of processes are noted in the log, as Diego does: in a tree of actions, or beside a monitor. The log of a single
    /// run has the output of its process alone.
    pub fn notes_exits(&self) -> bool {
        self.main().is_none() || self.checks.as_ref().is_some_and(|checks| checks.monitor != MonitorForm::None)
    }

    /// The restart policy.
    pub fn restart(&self) -> Option<&RestartPolicy> {
        self.actions.as_ref()?.restart.as_ref()
    }

    /// Tells whether its volume holds secrets that no process of the container sees: those of steps that wait, or its
    /// environment.
    pub fn has_hidden_secrets(&self) -> bool {
        self.actions.is_some() || self.keep_environment
    }

    /// Index of the process whose environment counts as the container's.
    pub fn first_process(&self) -> Option<usize> {
        match &self.actions {
            Some(actions) => actions.first_process(),
            None => self.processes.iter().position(|process| process.id == MAIN_PROCESS),
        }
    }

    /// The file that holds its runtime token.
    pub fn token_file(&self) -> Option<&PlannedFile> {
        self.files.last().filter(|file| file.token)
    }

    /// Returns the layout of the secret files in their file system.
    pub fn layout(&self) -> Layout {
        if self.writable_files.is_some() { Layout::Writable } else { Layout::Generations }
    }

    /// The files whose content comes with the request, in the order of the files payload.
    pub fn given_files(&self) -> &[PlannedFile] {
        &self.files[..self.files.len() - usize::from(self.token_file().is_some())]
    }
}
