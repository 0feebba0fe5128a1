//! What a container has of the host beyond its limits: processors, devices, a confinement, and attributes of its processes.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Processors, devices and attributes of the processes of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostOptions {
    /// Processors, in the kernel's list format; all when empty.
    pub cpus: String,
    /// Memory nodes, likewise.
    pub memory_nodes: String,
    /// Adjustment of the score by which the kernel chooses processes to kill; the launcher's own when unset.
    pub oom_score_adj: Option<i32>,
    /// Limits of each process, in the order of the request.
    pub ulimits: Vec<Ulimit>,
    /// AppArmor profile of each process; none when empty.
    pub apparmor_profile: String,
    /// Devices, in the order of the request.
    pub devices: Vec<Device>,
}

impl HostOptions {
    /// Returns true when the container has a cgroup of processors and memory nodes.
    pub fn has_cpuset(&self) -> bool {
        !self.cpus.is_empty() || !self.memory_nodes.is_empty()
    }

    /// Returns the devices of CDI with their indices in the request.
    pub fn cdi_devices(&self) -> impl Iterator<Item = (usize, &Device)> {
        self.devices.iter().enumerate().filter(|(_, device)| device.is_cdi())
    }
}

/// A limit of each process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ulimit {
    /// Name as in docker: `memlock`.
    pub name: String,
    /// Soft limit; -1 for none.
    pub soft: i64,
    /// Hard limit; -1 for none.
    pub hard: i64,
}

/// A device of the operator's list, or of CDI, in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Name in the configuration, or the qualified name of a device of CDI: `vendor.com/class=name`.
    pub name: String,
    /// Path of the node in the container; empty in a draft for the path on the host. Empty for a device of CDI.
    pub path: PathBuf,
    /// Permissions; empty in a draft for those of the configuration. Empty for a device of CDI.
    pub permissions: String,
}

impl Device {
    /// Returns true for a device of CDI.
    pub fn is_cdi(&self) -> bool {
        self.name.contains('=')
    }
}

/// A device of the host that the operator lends to containers: an entry of the table `devices` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostDevice {
    /// Name, by which requests ask for it.
    pub name: String,
    /// Device node on the host.
    pub path: PathBuf,
    /// Permissions that a container can have at most.
    #[serde(default = "reading_and_writing")]
    pub permissions: String,
}

fn reading_and_writing() -> String {
    "rw".to_owned()
}

/// Permissions on a device, as the kernel's device cgroup has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DevicePermissions {
    /// `r`: open it for reading.
    pub read: bool,
    /// `w`: open it for writing.
    pub write: bool,
    /// `m`: make nodes of it.
    pub create: bool,
}

impl DevicePermissions {
    /// Returns true when every permission is one of `other`.
    pub fn are_within(self, other: Self) -> bool {
        (!self.read || other.read) && (!self.write || other.write) && (!self.create || other.create)
    }
}

impl FromStr for DevicePermissions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut permissions = Self::default();
        for letter in text.chars() {
            let one = match letter {
                'r' => &mut permissions.read,
                'w' => &mut permissions.write,
                'm' => &mut permissions.create,
                _ => return Err("use r (read), w (write), m (make nodes), each at most once".to_owned()),
            };
            if std::mem::replace(one, true) {
                return Err(format!("{letter} is given twice"));
            }
        }
        if !permissions.read && !permissions.write {
            return Err("must have r (read), w (write) or both".to_owned());
        }
        Ok(permissions)
    }
}

impl fmt::Display for DevicePermissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = [(self.read, "r"), (self.write, "w"), (self.create, "m")];
        letters.into_iter().filter(|(has, _)| *has).try_for_each(|(_, letter)| f.write_str(letter))
    }
}
