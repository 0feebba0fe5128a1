//! Grants: privileges that a convention may add to a template. Without a grant it adds none.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// Kind of privilege.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grant {
    /// Privileged containers.
    Privileged,
    /// Capabilities, added or no longer dropped.
    Capabilities,
    /// Processes that gain privileges by programs with set-user-id.
    PrivilegeEscalation,
    /// User 0, group 0, and the image's user where another was fixed.
    Root,
    /// The host's network, processes, IPC, user namespace and ports.
    HostNamespaces,
    /// Directories and files of the host.
    HostPath,
    /// Volumes from elsewhere: claims, network file systems, drivers.
    Volumes,
    /// Devices: block volumes, resource claims, extended resources.
    Devices,
    /// Secrets: as files, as variables, for pulls.
    Secrets,
    /// Service accounts and their tokens.
    ServiceAccount,
    /// Filters and profiles that isolate: seccomp, AppArmor, SELinux, masked /proc, read-only root, sysctls, runtime class.
    Isolation,
    /// Removal of containers.
    Containers,
}

impl Grant {
    /// All of them, in the order of the documentation.
    pub const ALL: [Self; 12] = [
        Self::Privileged,
        Self::Capabilities,
        Self::PrivilegeEscalation,
        Self::Root,
        Self::HostNamespaces,
        Self::HostPath,
        Self::Volumes,
        Self::Devices,
        Self::Secrets,
        Self::ServiceAccount,
        Self::Isolation,
        Self::Containers,
    ];

    /// Returns the name in a registration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Capabilities => "capabilities",
            Self::PrivilegeEscalation => "privilegeEscalation",
            Self::Root => "root",
            Self::HostNamespaces => "hostNamespaces",
            Self::HostPath => "hostPath",
            Self::Volumes => "volumes",
            Self::Devices => "devices",
            Self::Secrets => "secrets",
            Self::ServiceAccount => "serviceAccount",
            Self::Isolation => "isolation",
            Self::Containers => "containers",
        }
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Grant {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|grant| grant.name() == text).ok_or(())
    }
}

impl Serialize for Grant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
