//! Defines the records of a container on disk. Records contain no arguments, values of variables or contents of files.
//!
//! The shim keeps a [`ContainerRecord`] in the container's run directory and replaces it by rename, so that a restarted
//! daemon or launcher can find the container. When the container exits, the shim writes an [`ExitRecord`] into the
//! state directory. The exit record describes the container after all its processes have exited.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cni::Address;
use crate::ident::{ContainerId, ProcessIdentity};
use crate::idmap::IdMap;
use crate::lifecycle::State;
use crate::placement::{Content, MountPoint, StepMount};
use crate::plan::{Plan, PlannedFile, Principal};
use crate::time::Timestamp;
use crate::usage::Usage;
use crate::users::ResolvedUser;

mod restart;
mod step;

pub use restart::{LastEnd, RestartRecord};
pub use step::{StepRecord, StepState};

/// Maximum size of a record that is read, in bytes.
pub const RECORD_MAX: u64 = 16 << 20;
/// Format version of the records below. A reader rejects newer versions.
pub const RECORD_VERSION: u32 = 1;

/// File system of the secret files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeKind {
    /// tmpfs whose pages never reach swap.
    TmpfsNoswap,
    /// ramfs, if the kernel's tmpfs has no `noswap`.
    Ramfs,
}

/// Properties of a container that are known once it is prepared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreparedContainer {
    /// Identity of the container's first process.
    pub init: ProcessIdentity,
    /// User of the process.
    pub user: ResolvedUser,
    /// Supplementary groups that the request adds for every process.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_groups: Vec<u32>,
    /// Environment variables of the CDI devices, `NAME=VALUE`, for every process that does not set these variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_environment: Vec<String>,
    /// Mount points of the secret files.
    pub mounts: Vec<MountPoint>,
    /// Ids of the groups that secret files refer to, by group name.
    #[serde(default)]
    pub file_groups: BTreeMap<String, u32>,
    /// File system of the secret files.
    pub volume: Option<VolumeKind>,
    /// Limit on open files (RLIMIT_NOFILE) in force.
    pub nofile: u64,
    /// Settings that could not be provided as requested.
    pub warnings: Vec<String>,
    /// Network of the node that the container is connected to.
    #[serde(default)]
    pub network: Option<Attached>,
    /// Users and files of an action tree's processes, in plan order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<PreparedStep>,
    /// Time at which the container was prepared.
    pub at: Timestamp,
}

/// Properties of a process in a tree of actions that are known once the container is prepared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreparedStep {
    /// User of the process.
    pub user: ResolvedUser,
    /// Limit on open files (RLIMIT_NOFILE) of the process.
    pub nofile: u64,
    /// Mount points of the process's secret files, in its own mount namespace.
    pub mounts: Vec<StepMount>,
}

impl PreparedContainer {
    /// Returns the id of a file's group; the user's group by default.
    pub fn gid_of(&self, file: &PlannedFile) -> u32 {
        gid_among(&self.file_groups, file, &self.user)
    }
}

/// Returns the id of a file's group. `groups` holds the ids of the groups that files refer to by name.
pub fn gid_among(groups: &BTreeMap<String, u32>, file: &PlannedFile, owner: &ResolvedUser) -> u32 {
    match &file.group {
        None => owner.gid,
        Some(Principal::Id(gid)) => *gid,
        // Every name was resolved before the file was written.
        Some(Principal::Name(name)) => groups.get(name).copied().unwrap_or(owner.gid),
    }
}

/// Network of the node that a container is connected to: a built-in network or a CNI network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// Name of the network.
    pub network: String,
    /// Addresses of the container.
    pub addresses: Vec<Address>,
}

/// Record of a container that has a shim. A reader that already has the plan parses the record with [`PlanId`] instead
/// of the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRecord<P = Plan> {
    /// Version of the format: [`RECORD_VERSION`].
    pub version: u32,
    /// Plan of the container.
    pub plan: P,
    /// Keyed digest of the whole request. The key is only in memory.
    pub request_tag: String,
    /// Time of acceptance.
    pub created_at: Timestamp,
    /// Start time of the shim.
    pub begun_at: Timestamp,
    /// State of the container when the record was written.
    pub state: State,
    /// Identity of the shim. A later process with the same process id has a different identity.
    pub shim: ProcessIdentity,
    /// Path of the cgroup, relative to each hierarchy's mount.
    pub cgroup: PathBuf,
    /// Properties of the prepared container; set from the state `created` on.
    pub prepared: Option<PreparedContainer>,
    /// Start time of the process; set from the state `running` on.
    pub started_at: Option<Timestamp>,
    /// True if a client has stopped the container.
    pub stopped: bool,
    /// Exit status of the process. Set from the state `wiping` on, so that it is not lost if another process finishes
    /// the container.
    #[serde(default)]
    pub exit: Option<Exit>,
    /// Number of times that the secret files were replaced, plus 1; 0 before the files are written, or if the container
    /// has none.
    #[serde(default)]
    pub files_generation: u64,
    /// Time of the last replacement of the secret files.
    #[serde(default)]
    pub files_updated_at: Option<Timestamp>,
    /// First host id that the container's users are mapped to; unset without a user namespace.
    #[serde(default)]
    pub id_range_start: Option<u32>,
    /// Steps of a tree of actions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepRecord>,
    /// Number of times that the egress was replaced.
    #[serde(default)]
    pub egress_generation: u64,
    /// Number of times that the limits were replaced.
    #[serde(default)]
    pub limits_generation: u64,
    /// True while the container's processes are stopped by a pause.
    #[serde(default)]
    pub paused: bool,
    /// Reason why a failed check terminates the container.
    #[serde(default)]
    pub unhealthy: Option<String>,
    /// Restarts; unset without a restart policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<RestartRecord>,
    /// First host id that the users of the pod are mapped to; unset if the container is not a member of a pod with a
    /// user namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_range_start: Option<u32>,
}

/// The id in a plan; all other fields are skipped.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PlanId {
    /// Id of the container.
    pub id: ContainerId,
}

impl ContainerRecord {
    /// Returns the first record of an accepted container, without an id mapping and without a request digest.
    pub fn first(
        plan: Plan,
        (created_at, begun_at): (Timestamp, Timestamp),
        shim: ProcessIdentity,
        cgroup: PathBuf,
    ) -> Self {
        Self {
            version: RECORD_VERSION,
            plan,
            request_tag: String::new(),
            created_at,
            begun_at,
            state: State::Initializing,
            shim,
            cgroup,
            prepared: None,
            started_at: None,
            stopped: false,
            exit: None,
            steps: Vec::new(),
            files_generation: 0,
            egress_generation: 0,
            limits_generation: 0,
            paused: false,
            files_updated_at: None,
            id_range_start: None,
            pod_range_start: None,
            unhealthy: None,
            restarts: None,
        }
    }

    /// Returns the mapping of container ids to host ids.
    pub fn id_map(&self) -> IdMap {
        IdMap::from_start(self.pod_range_start.or(self.id_range_start))
    }

    /// Returns the mount point of the file with this index.
    pub fn mount_of(&self, index: usize) -> Option<&MountPoint> {
        self.prepared.as_ref()?.mounts.iter().find(|mount| match &mount.content {
            Content::File(file) => *file == index,
            Content::Directory(files) => files.iter().any(|(file, _)| *file == index),
        })
    }
}

/// Exit status of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exit {
    /// Exit code, if the process exited.
    Code(i32),
    /// Number of the signal that terminated the process.
    Signal(i32),
}

/// Reason why a container failed. The exit status may be known as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// The execve failed.
    Exec,
    /// The container could not be created.
    Prepare,
    /// The shim exited before the container's process.
    SupervisorLost,
    /// The machine was shut down.
    HostStopped,
    /// An action failed.
    Action,
    /// A failed check terminated the container.
    Unhealthy,
    /// A held container was stopped, or its init was killed, before the container was started.
    NotStarted,
    /// The container that owned the PID namespace of this container has exited.
    TargetEnded,
}

/// Description of a failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Kind of failure.
    pub kind: FailureKind,
    /// Failed operation, with its object.
    pub message: String,
    /// Error number of the system call; 0 if there is none.
    pub errno: i32,
}

/// Durations of a container's phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timings {
    /// Time from the start of the shim until the container is prepared.
    pub prepare: Duration,
    /// Time from the end of `prepare` until the program runs.
    pub start: Duration,
    /// Time from the end of `start` until the process exits.
    pub run: Duration,
    /// Time from the end of `run` until everything is wiped and the exit is reported.
    pub finish: Duration,
}

/// Receipt of a wipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WipeRecord {
    /// Number of wiped files.
    pub files: u32,
    /// Number of overwritten bytes.
    pub bytes: u64,
    /// True if every byte was read back as zero.
    pub verified: bool,
    /// Name of the process that wiped: `shim` or `launcher`.
    pub by: String,
    /// Time of the wipe.
    pub at: Timestamp,
}

/// Method of a wipe, as in receipts.
pub const WIPE_METHOD: &str = "overwritten in place, read back, unlinked";

/// Summary of captured outputs. The files and their list are in the state directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputsRecord {
    /// Number of captured files.
    pub files: u32,
    /// Total size of the captured files, in bytes.
    pub bytes: u64,
    /// Number of files that exist and were not captured.
    pub skipped: u32,
    /// Error that prevented the capture of all outputs.
    pub failure: Option<String>,
}

/// Final record of a completed container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord<P = Plan> {
    /// Last version of the container's record.
    pub container: ContainerRecord<P>,
    /// Exit status of the process; unset if the process never ran or its status is unknown.
    pub exit: Option<Exit>,
    /// True if the kernel killed a process because the memory limit was reached.
    pub oom_killed: bool,
    /// Reason why the container failed, if it failed.
    pub failure: Option<Failure>,
    /// Durations of the container's phases.
    pub timings: Timings,
    /// Receipt of the wipe. Unset if the last user of the memory exited and the kernel freed the memory before it could
    /// be overwritten.
    pub wipe: Option<WipeRecord>,
    /// Summary of the outputs; unset if none were declared, or the process never ran.
    #[serde(default)]
    pub outputs: Option<OutputsRecord>,
    /// True if the end of the output may be missing from the log, because no process was left to read the output.
    #[serde(default)]
    pub output_incomplete: bool,
    /// Counters of the whole run; unset if the process never ran.
    #[serde(default)]
    pub usage: Option<Usage>,
    /// Termination message of the process, masked; empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub termination_message: String,
    /// Time at which the container was finished.
    pub finished_at: Timestamp,
}
