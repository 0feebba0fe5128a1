//! Records of a container on disk, without arguments, values of variables or contents of files.
//!
//! The shim keeps a [`ContainerRecord`] in the container's run directory, replaced by rename, so that a daemon
//! or a launcher that was dead can find the container again; at the end it writes an [`ExitRecord`] into the
//! state directory, from which everything is known without any process of ours.

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

/// Largest record that is read, in bytes.
pub const RECORD_MAX: u64 = 16 << 20;
/// The form of the records below. A reader refuses a newer one.
pub const RECORD_VERSION: u32 = 1;

/// File system of the secret files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeKind {
    /// tmpfs that never reaches swap.
    TmpfsNoswap,
    /// ramfs, where the kernel's tmpfs cannot promise that.
    Ramfs,
}

/// Facts about a prepared container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// The container's first process.
    pub init: ProcessIdentity,
    /// User of the process.
    pub user: ResolvedUser,
    /// Supplementary groups that the request adds to those of every user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_groups: Vec<u32>,
    /// Variables of its devices of CDI, `NAME=VALUE`, for every process that does not set them itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_environment: Vec<String>,
    /// Mount points of its files.
    pub mounts: Vec<MountPoint>,
    /// Numbers of the groups that its files name.
    #[serde(default)]
    pub file_groups: BTreeMap<String, u32>,
    /// File system of the secret files.
    pub volume: Option<VolumeKind>,
    /// RLIMIT_NOFILE in force.
    pub nofile: u64,
    /// Settings that could not be provided as requested.
    pub warnings: Vec<String>,
    /// The network of CNI that it is on.
    #[serde(default)]
    pub network: Option<Attached>,
    /// Users and files of the processes of a tree of actions, in their order in the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<PreparedStep>,
    /// Time.
    pub at: Timestamp,
}

/// Facts about a process of a tree of actions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreparedStep {
    /// User.
    pub user: ResolvedUser,
    /// Open files of the process.
    pub nofile: u64,
    /// Mount points of its secret files, in its own mount namespace.
    pub mounts: Vec<StepMount>,
}

impl Prepared {
    /// The number of a file's group, where its owner has this one.
    pub fn gid_of(&self, file: &PlannedFile) -> u32 {
        gid_among(&self.file_groups, file, &self.user)
    }
}

/// Returns the number of a file's group, by the groups that files name.
pub fn gid_among(groups: &BTreeMap<String, u32>, file: &PlannedFile, owner: &ResolvedUser) -> u32 {
    match &file.group {
        None => owner.gid,
        Some(Principal::Id(gid)) => *gid,
        // Each was resolved before the file was written.
        Some(Principal::Name(name)) => groups.get(name).copied().unwrap_or(owner.gid),
    }
}

/// A network of CNI that a container was put onto.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// Name of the network.
    pub network: String,
    /// Addresses of the container.
    pub addresses: Vec<Address>,
}

/// A container that has a shim. A reader that knows its plan already reads it with [`PlanId`] in the place of that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRecord<P = Plan> {
    /// [`RECORD_VERSION`].
    pub version: u32,
    /// Plan of the container.
    pub plan: P,
    /// A keyed hash of the whole request, under a key that is in memory only.
    pub request_tag: String,
    /// Time of admission.
    pub created_at: Timestamp,
    /// Start time of the shim.
    pub begun_at: Timestamp,
    /// State.
    pub state: State,
    /// Identity of the shim.
    pub shim: ProcessIdentity,
    /// The cgroup, relative to each hierarchy's mount.
    pub cgroup: PathBuf,
    /// Set from `created` on.
    pub prepared: Option<Prepared>,
    /// Set from `running` on.
    pub started_at: Option<Timestamp>,
    /// True when a client has stopped the container.
    pub stopped: bool,
    /// Exit status of the process, set from `wiping` on, so that it is known even if another process does the rest.
    #[serde(default)]
    pub exit: Option<Exit>,
    /// Number of times that the secret files were replaced, plus 1; 0 before they are written, and if there are none.
    #[serde(default)]
    pub files_generation: u64,
    /// Time of the last replacement.
    #[serde(default)]
    pub files_updated_at: Option<Timestamp>,
    /// First id of the host that its users have, where it has a user namespace.
    #[serde(default)]
    pub id_range_start: Option<u32>,
    /// Steps of a tree of actions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepRecord>,
    /// Number of times that its egress was replaced.
    #[serde(default)]
    pub egress_generation: u64,
    /// Number of times that its limits were replaced.
    #[serde(default)]
    pub limits_generation: u64,
    /// True while its processes are stopped by a pause.
    #[serde(default)]
    pub paused: bool,
    /// Reason for which the container is being ended because of its checks.
    #[serde(default)]
    pub unhealthy: Option<String>,
    /// Restarts, where it has a restart policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<RestartRecord>,
    /// First id of the host that the users of its pod have, where it is a member of one with a user namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_range_start: Option<u32>,
}

/// The id in a plan, of which nothing else is parsed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PlanId {
    /// Id of the container.
    pub id: ContainerId,
}

impl ContainerRecord {
    /// Returns the first record of a container that is admitted and about to be made, with the ids of the host, by this shim, in this
    /// cgroup. Its request has no tag.
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

    /// Returns the mapping of its ids to the host's.
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
    /// The process exited.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}

/// Reason why a process never ran, or why its exit status is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// execve failed.
    Exec,
    /// The container could not be made.
    Prepare,
    /// The shim was lost.
    SupervisorLost,
    /// The machine was stopped.
    HostStopped,
    /// An action failed.
    Action,
    /// The container was ended because of its checks.
    Unhealthy,
}

/// A failure, told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Kind.
    pub kind: FailureKind,
    /// Operation that failed, and its object.
    pub message: String,
    /// The system call's error number, 0 where there is none.
    pub errno: i32,
}

/// Durations of a container's phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timings {
    /// Until the container was prepared.
    pub prepare: Duration,
    /// Until the program ran.
    pub start: Duration,
    /// Until the process ended.
    pub run: Duration,
    /// Until everything was wiped and removed.
    pub finish: Duration,
}

/// Record of a wipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WipeRecord {
    /// Files.
    pub files: u32,
    /// Bytes overwritten.
    pub bytes: u64,
    /// Read back as zero, all of them.
    pub verified: bool,
    /// Process that wiped.
    pub by: String,
    /// Time of the wipe.
    pub at: Timestamp,
}

/// Method of a wipe, as in receipts.
pub const WIPE_METHOD: &str = "overwritten in place, read back, unlinked";

/// Summary of captured outputs. The files and their list are in the state directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputsRecord {
    /// Files.
    pub files: u32,
    /// Bytes of the files.
    pub bytes: u64,
    /// Number of files that exist and were not captured.
    pub skipped: u32,
    /// Error that kept all outputs from being captured.
    pub failure: Option<String>,
}

/// The end of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord<P = Plan> {
    /// Last record of the container.
    pub container: ContainerRecord<P>,
    /// Exit status of the process; unset if it never ran or its status is unknown.
    pub exit: Option<Exit>,
    /// The kernel killed for want of memory.
    pub oom_killed: bool,
    /// Failure of the executor, if any.
    pub failure: Option<Failure>,
    /// Durations of the phases.
    pub timings: Timings,
    /// Receipt of the wipe. Unset if the memory was freed with its last holder before it could be overwritten.
    pub wipe: Option<WipeRecord>,
    /// Summary of the outputs; unset if none were declared, or the process never ran.
    #[serde(default)]
    pub outputs: Option<OutputsRecord>,
    /// The last of the output may not be in the log: nobody took it.
    #[serde(default)]
    pub output_incomplete: bool,
    /// Counters of the whole run; unset if the process never ran.
    #[serde(default)]
    pub usage: Option<Usage>,
    /// Message that the process left about its end, masked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub termination_message: String,
    /// Time at which everything was done.
    pub finished_at: Timestamp,
}
