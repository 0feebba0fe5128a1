//! Devices of the host in a container, and the rules of its cgroup that open them.

use std::path::PathBuf;

use oci_spec::OciSpecError;
use oci_spec::runtime::{LinuxDeviceCgroup, LinuxDeviceCgroupBuilder, LinuxDeviceType};

use crate::plan::DevicePermissions;

/// A device as it was found on the host: by its numbers, whatever stands at its path later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceNode {
    /// Path of the node in the container.
    pub path: PathBuf,
    /// True for a block device, false for a character device.
    pub block: bool,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Permissions of the container.
    pub permissions: DevicePermissions,
}

impl DeviceNode {
    /// Returns the permission bits of the node, which are everybody's in the container.
    pub fn mode(&self) -> u32 {
        let (read, write) = (u32::from(self.permissions.read), u32::from(self.permissions.write));
        (read * 0o444) | (write * 0o222)
    }
}

/// Returns the rules of a container's device cgroup: nothing (or everything, where it has all devices), but these.
pub(super) fn rules(all_devices: bool, nodes: &[DeviceNode]) -> Result<Vec<LinuxDeviceCgroup>, OciSpecError> {
    let first = LinuxDeviceCgroupBuilder::default().allow(all_devices).access("rwm").build();
    let rule = |node: &DeviceNode| {
        LinuxDeviceCgroupBuilder::default()
            .allow(true)
            .typ(if node.block { LinuxDeviceType::B } else { LinuxDeviceType::C })
            .major(node.major)
            .minor(node.minor)
            .access(node.permissions.to_string())
            .build()
    };
    std::iter::once(first).chain(nodes.iter().map(rule)).collect()
}
