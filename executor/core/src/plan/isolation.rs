//! Isolation of a container from its host.

use serde::{Deserialize, Serialize};

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
