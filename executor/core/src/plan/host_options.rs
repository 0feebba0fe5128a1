//! Defines the settings of a container that concern host resources, in addition to its limits: CPUs, devices, AppArmor
//! profile, and attributes of its processes.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Directory of the host's devices.
pub const DEV: &str = "/dev";
/// Name prefix of a container's cgroup below a parent cgroup from the request.
pub const GIVEN_CGROUP: &str = "executor-";

/// CPUs, devices and attributes of the processes of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostOptions {
    /// CPUs, in the kernel's list format; all host CPUs if empty.
    pub cpus: String,
    /// Memory nodes, in the kernel's list format; all memory nodes of the host if empty.
    pub memory_nodes: String,
    /// Adjustment of the OOM score; 0 if unset.
    pub oom_score_adj: Option<i32>,
    /// Limits of each process, in the order of the request.
    pub ulimits: Vec<Ulimit>,
    /// AppArmor profile of each process; none if empty.
    pub apparmor_profile: String,
    /// Devices, in the order of the request.
    pub devices: Vec<Device>,
    /// Absolute path of the parent of the container's cgroup; the launcher's configured parent if empty.
    pub cgroup_parent: PathBuf,
    /// Bytes of huge pages by page size in the kernel's format: `2MB`.
    pub hugepage_bytes: BTreeMap<String, u64>,
    /// Cgroup v2 files and their values.
    pub unified: BTreeMap<String, String>,
}

impl HostOptions {
    /// Returns true if the container has a cpuset cgroup.
    pub fn has_cpuset(&self) -> bool {
        !self.cpus.is_empty() || !self.memory_nodes.is_empty()
    }

    /// Returns true if the container has all devices of the host.
    pub fn has_whole_dev(&self) -> bool {
        self.devices.iter().any(Device::is_whole_dev)
    }

    /// Returns the CDI devices with their indices in the request.
    pub fn cdi_devices(&self) -> impl Iterator<Item = (usize, &Device)> {
        self.devices.iter().enumerate().filter(|(_, device)| device.is_cdi())
    }
}

/// A resource limit of each process (setrlimit).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ulimit {
    /// Name as in Docker, for example `memlock`.
    pub name: String,
    /// Soft limit; -1 for none.
    pub soft: i64,
    /// Hard limit; -1 for none.
    pub hard: i64,
}

/// A device in a container, from the operator's list or from CDI.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Name in the configuration, or the qualified name of a CDI device: `vendor.com/class=name`. Empty if
    /// `host_path` is set.
    pub name: String,
    /// Host path of a device node, or of a directory with device nodes; unset if the device has a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<PathBuf>,
    /// Path of the device node or directory in the container. Empty for a CDI device. In a draft, empty =
    /// the path on the host.
    pub path: PathBuf,
    /// Permissions. Empty for a CDI device. In a draft, empty = the permissions in the configuration.
    pub permissions: String,
}

impl Device {
    /// Returns true for a CDI device.
    pub fn is_cdi(&self) -> bool {
        self.name.contains('=')
    }

    /// Returns true if this entry requests all devices of the host, at their own paths.
    pub fn is_whole_dev(&self) -> bool {
        self.host_path.as_deref() == Some(Path::new(DEV)) && [Path::new(""), Path::new(DEV)].contains(&&*self.path)
    }
}

/// A host device that containers may use: an entry of the table `devices` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostDevice {
    /// Name of the device in requests.
    pub name: String,
    /// Device node on the host.
    pub path: PathBuf,
    /// Maximum permissions of a container on the device.
    #[serde(default = "reading_and_writing")]
    pub permissions: String,
}

fn reading_and_writing() -> String {
    "rw".to_owned()
}

/// Permissions on a device, as in the kernel's device cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DevicePermissions {
    /// True if the device can be opened for reading (`r`).
    pub read: bool,
    /// True if the device can be opened for writing (`w`).
    pub write: bool,
    /// True if nodes of the device can be created (`m`, mknod).
    pub create: bool,
}

impl DevicePermissions {
    /// Returns true if every permission is also in `other`.
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
