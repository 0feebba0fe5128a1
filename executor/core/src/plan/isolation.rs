//! Defines a container's isolation from the host.

use serde::{Deserialize, Serialize};

use crate::ident::ContainerId;

/// Paths that are masked by an empty file or directory by default.
pub const MASKED: [&str; 10] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/firmware",
];

/// Paths that are read-only by default.
pub const READONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// User namespace of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UserNamespace {
    /// A separate user namespace, with a range of host ids that no other container uses.
    #[default]
    Own,
    /// No user namespace: the container uses host ids.
    Host,
}

/// Range of ids in a container and on the host, for users and groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMapping {
    /// First id of the range in the container.
    pub container_id: u32,
    /// First id of the range on the host.
    pub host_id: u32,
    /// Number of ids in the range.
    pub length: u32,
}

/// Requested isolation; the default is the strictest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Isolation {
    /// Kind of user namespace.
    pub user_namespace: UserNamespace,
    /// True if the container has all capabilities, no seccomp filter and no masked paths.
    pub privileged: bool,
    /// Capabilities to add, in the kernel's spelling (`CAP_CHOWN`), sorted; `ALL` means all of them.
    pub capabilities_added: Vec<String>,
    /// Capabilities to remove before adding, in the same spelling, sorted.
    pub capabilities_dropped: Vec<String>,
    /// True if the host's Docker socket is mounted.
    pub docker_socket: bool,
    /// True if the root file system is read-only.
    pub read_only_rootfs: bool,
    /// Seccomp filter of the request, as JSON; empty for the default filter.
    pub seccomp_profile: String,
    /// True if programs may gain privileges: no_new_privs is not set, and the root file system honours set-user-id
    /// bits.
    pub allow_new_privileges: bool,
    /// True if the container has no seccomp filter.
    pub seccomp_unconfined: bool,
    /// Paths that are masked, sorted; [`MASKED`] if unset.
    pub masked_paths: Option<Vec<String>>,
    /// Paths that are read-only, sorted; [`READONLY`] if unset.
    pub readonly_paths: Option<Vec<String>>,
    /// True if the processes run in the host's PID namespace.
    pub host_pid: bool,
    /// True if the container has the host's IPC namespace and /dev/shm.
    pub host_ipc: bool,
    /// Member of the same pod whose PID namespace the container joins.
    pub pid_of: Option<ContainerId>,
    /// Range of ids that the request names; unset for a range from the pool.
    pub id_map: Option<IdMapping>,
}

impl Isolation {
    /// Returns true if the container can change its own cgroup: it is privileged and uses host ids.
    pub fn has_writable_cgroup(&self) -> bool {
        self.privileged && self.user_namespace == UserNamespace::Host
    }

    /// Returns the paths to mask. A privileged container has none by default.
    pub fn masked(&self) -> Vec<String> {
        self.paths(self.masked_paths.as_ref(), &MASKED)
    }

    /// Returns the paths to make read-only. A privileged container has none by default.
    pub fn readonly(&self) -> Vec<String> {
        self.paths(self.readonly_paths.as_ref(), &READONLY)
    }

    fn paths(&self, asked: Option<&Vec<String>>, default: &[&str]) -> Vec<String> {
        match asked {
            Some(asked) => asked.clone(),
            None if self.privileged => Vec::new(),
            None => default.iter().map(|path| (*path).to_owned()).collect(),
        }
    }
}
