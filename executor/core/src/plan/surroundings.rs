//! Defines the mounts, kernel settings and host names of a container, in addition to its root file system and network.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Default size of /dev/shm, in bytes.
pub const SHM_BYTES_DEFAULT: u64 = 64 << 20;
/// Default permission bits of a tmpfs.
pub const TMPFS_MODE_DEFAULT: u32 = 0o1777;

/// Directories that are new and empty in every container with the root file system `host`.
pub const FRESH_OF_HOST: [&str; 2] = ["/tmp", "/run"];
/// Path of the Docker socket in a container.
pub const DOCKER_SOCKET: &str = "/var/run/docker.sock";

/// An empty tmpfs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tmpfs {
    /// Mount point of the tmpfs in the container.
    pub path: PathBuf,
    /// Maximum size in bytes. In a draft, 0 = the container's memory limit.
    pub bytes: u64,
    /// Permission bits of the root directory.
    pub mode: u32,
    /// Owner of the root directory, as an id in the container.
    pub uid: u32,
    /// Group of the root directory, as an id in the container.
    pub gid: u32,
    /// True if programs on the tmpfs can be executed.
    pub exec: bool,
}

/// A line of /etc/hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraHost {
    /// Host name that is resolved.
    pub name: String,
    /// IP address of the host name.
    pub address: IpAddr,
}

/// Mounts, kernel settings and host names of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Surroundings {
    /// Empty tmpfs mounts, ordered by path.
    pub tmpfs: Vec<Tmpfs>,
    /// Size of /dev/shm in bytes. In a draft, 0 = the default.
    pub shm_bytes: u64,
    /// Sysctls of the container's own namespaces, by name.
    pub sysctls: BTreeMap<String, String>,
    /// Host names in addition to the container's own.
    pub extra_hosts: Vec<ExtraHost>,
    /// True if the first process is the executor's init, with the program as its child.
    pub init: bool,
}

/// Returns the settings for a plan that was written before plans had the field `surroundings`.
pub(super) fn legacy_default() -> Surroundings {
    Surroundings { shm_bytes: SHM_BYTES_DEFAULT, ..Surroundings::default() }
}
