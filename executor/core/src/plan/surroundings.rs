//! What a container finds around it beside its root file system and its network.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Size of /dev/shm where a request says nothing.
pub const SHM_BYTES_DEFAULT: u64 = 64 << 20;
/// Permission bits of a tmpfs where a request says nothing.
pub const TMPFS_MODE_DEFAULT: u32 = 0o1777;

/// An empty file system in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tmpfs {
    /// Where it is, in the container.
    pub path: PathBuf,
    /// Bytes that it holds; in a draft 0 for the container's limit of memory.
    pub bytes: u64,
    /// Permission bits of its root.
    pub mode: u32,
    /// Owner of its root, in the container.
    pub uid: u32,
    /// Group of its root, in the container.
    pub gid: u32,
    /// Programs on it can be executed.
    pub exec: bool,
}

/// A line of /etc/hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraHost {
    /// The name.
    pub name: String,
    /// What it leads to.
    pub address: IpAddr,
}

/// What a container finds around it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Surroundings {
    /// In the order of their paths.
    pub tmpfs: Vec<Tmpfs>,
    /// Bytes of /dev/shm; in a draft 0 for the default.
    pub shm_bytes: u64,
    /// Settings of the kernel that the container's own namespaces have.
    pub sysctls: BTreeMap<String, String>,
    /// Names beside the container's own.
    pub extra_hosts: Vec<ExtraHost>,
    /// Its first process is an init of the executor's, and the program that one's child.
    pub init: bool,
}

/// Of a container that was made before a plan said so.
pub(super) fn before() -> Surroundings {
    Surroundings { shm_bytes: SHM_BYTES_DEFAULT, ..Surroundings::default() }
}
