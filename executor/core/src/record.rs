//! What is remembered of a container, on disk: no argument, no value of a variable, no content of a file.
//!
//! The shim keeps a [`ContainerRecord`] in the container's run directory, replaced by rename, so that a daemon
//! or a launcher that was dead can find the container again; at the end it writes an [`ExitRecord`] into the
//! state directory, from which everything is known without any process of ours.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cni::Address;
use crate::ident::ProcessIdentity;
use crate::idmap::IdMap;
use crate::lifecycle::State;
use crate::placement::{Content, MountPoint};
use crate::plan::{Plan, PlannedFile, Principal};
use crate::time::Timestamp;
use crate::users::ResolvedUser;

/// Largest record that is read, in bytes.
pub const RECORD_MAX: u64 = 16 << 20;
/// The form of the records below. A reader refuses a newer one.
pub const RECORD_VERSION: u32 = 1;

/// Which file system holds the secret files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeKind {
    /// tmpfs that never reaches swap.
    TmpfsNoswap,
    /// ramfs, where the kernel's tmpfs cannot promise that.
    Ramfs,
}

/// What is known once a container stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// The container's first process.
    pub init: ProcessIdentity,
    /// Whom it runs as.
    pub user: ResolvedUser,
    /// Where its files are mounted.
    pub mounts: Vec<MountPoint>,
    /// Numbers of the groups that its files name.
    #[serde(default)]
    pub file_groups: BTreeMap<String, u32>,
    /// On what.
    pub volume: Option<VolumeKind>,
    /// RLIMIT_NOFILE in force.
    pub nofile: u64,
    /// What could not be had as asked.
    pub warnings: Vec<String>,
    /// The network of CNI that it is on.
    #[serde(default)]
    pub network: Option<Attached>,
    /// When.
    pub at: Timestamp,
}

impl Prepared {
    /// The number of a file's group.
    pub fn gid_of(&self, file: &PlannedFile) -> u32 {
        match &file.group {
            None => self.user.gid,
            Some(Principal::Id(gid)) => *gid,
            // Each was resolved before the file was written.
            Some(Principal::Name(name)) => self.file_groups.get(name).copied().unwrap_or(self.user.gid),
        }
    }
}

/// A network of CNI that a container was put onto.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// Its name.
    pub network: String,
    /// What the container is reached at.
    pub addresses: Vec<Address>,
}

/// A container that has a shim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRecord {
    /// [`RECORD_VERSION`].
    pub version: u32,
    /// What was asked for.
    pub plan: Plan,
    /// A keyed hash of the whole request, under a key that is in memory only.
    pub request_tag: String,
    /// When it was admitted.
    pub created_at: Timestamp,
    /// When the shim began.
    pub begun_at: Timestamp,
    /// How far it is.
    pub state: State,
    /// Its shim.
    pub shim: ProcessIdentity,
    /// The cgroup, relative to each hierarchy's mount.
    pub cgroup: PathBuf,
    /// Set from `created` on.
    pub prepared: Option<Prepared>,
    /// Set from `running` on.
    pub started_at: Option<Timestamp>,
    /// It was asked to stop.
    pub stopped: bool,
    /// How its process ended: set from `wiping` on, so that it is known even if the rest is done by another.
    #[serde(default)]
    pub exit: Option<Exit>,
    /// How often its secret files were replaced, plus 1; 0 until they are there, and where there are none.
    #[serde(default)]
    pub files_generation: u64,
    /// When they were replaced last.
    #[serde(default)]
    pub files_updated_at: Option<Timestamp>,
    /// First id of the host that its users have, where it has a user namespace.
    #[serde(default)]
    pub id_range_start: Option<u32>,
}

impl ContainerRecord {
    /// What its ids are on the host.
    pub fn id_map(&self) -> IdMap {
        IdMap::of(self.id_range_start)
    }

    /// Where the file of this index is mounted.
    pub fn mount_of(&self, index: usize) -> Option<&MountPoint> {
        self.prepared.as_ref()?.mounts.iter().find(|mount| match &mount.content {
            Content::File(file) => *file == index,
            Content::Directory(files) => files.iter().any(|(file, _)| *file == index),
        })
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exit {
    /// It called exit.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}

/// Why a process never ran, or why its end is unknown.
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
}

/// A failure, told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Of which kind.
    pub kind: FailureKind,
    /// What failed, and on what.
    pub message: String,
    /// The system call's error number, 0 where there is none.
    pub errno: i32,
}

/// Where the time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timings {
    /// Until the container stood.
    pub prepare: Duration,
    /// Until the program ran.
    pub start: Duration,
    /// Until it ended.
    pub run: Duration,
    /// Until it was wiped and removed.
    pub finish: Duration,
}

/// What a wipe did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WipeRecord {
    /// Files.
    pub files: u32,
    /// Bytes overwritten.
    pub bytes: u64,
    /// Read back as zero, all of them.
    pub verified: bool,
    /// Which process did it.
    pub by: String,
    /// When it was done.
    pub at: Timestamp,
}

/// How a wipe is done, as receipts tell it.
pub const WIPE_METHOD: &str = "overwritten in place, read back, unlinked";

/// What was captured of the declared outputs. The files and their list are in the state directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputsRecord {
    /// Files.
    pub files: u32,
    /// Bytes of them.
    pub bytes: u64,
    /// What was there and was not captured.
    pub skipped: u32,
    /// Why nothing could be captured at all.
    pub failure: Option<String>,
}

/// The end of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// Its last record.
    pub container: ContainerRecord,
    /// How the process ended; unset where it never ran or nobody saw it.
    pub exit: Option<Exit>,
    /// The kernel killed for want of memory.
    pub oom_killed: bool,
    /// What went wrong.
    pub failure: Option<Failure>,
    /// Where the time went.
    pub timings: Timings,
    /// What was wiped. Unset where the memory went with its last holder and nobody could overwrite it.
    pub wipe: Option<WipeRecord>,
    /// What was captured; unset where nothing was declared, or the process never ran.
    #[serde(default)]
    pub outputs: Option<OutputsRecord>,
    /// The last of the output may not be in the log: nobody took it.
    #[serde(default)]
    pub output_incomplete: bool,
    /// When all was done.
    pub finished_at: Timestamp,
}
