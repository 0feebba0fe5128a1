//! Defines grants. A grant permits a convention to add a kind of privilege to templates; without grants, a convention
//! cannot add privileges.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// Kind of privilege that a convention may add.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grant {
    /// Privileged containers.
    Privileged,
    /// Capabilities that are added or no longer dropped.
    Capabilities,
    /// Privileges gained through set-user-id programs.
    PrivilegeEscalation,
    /// User 0, group 0, and the image's user instead of an explicit user.
    Root,
    /// Host network, processes, IPC, user namespace and ports.
    HostNamespaces,
    /// Host directories and files.
    HostPath,
    /// External volumes: persistent volume claims, network file systems, CSI drivers.
    Volumes,
    /// Devices: block volumes, resource claims, extended resources.
    Devices,
    /// Secrets in files, in variables or for image pulls.
    Secrets,
    /// Service accounts and their tokens.
    ServiceAccount,
    /// Less isolation: seccomp, AppArmor, SELinux, masked /proc, read-only root, sysctls, runtime class.
    Isolation,
    /// Removal of containers.
    Containers,
}

impl Grant {
    /// All grants, in the order of the documentation.
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

    /// Returns the name used in a registration.
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
