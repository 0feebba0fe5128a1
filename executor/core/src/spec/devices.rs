//! Defines the nodes of host devices in a container.

use std::path::PathBuf;

use crate::plan::DevicePermissions;

/// A host device, identified by its numbers: later changes at its path have no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceNode {
    /// Path of the node in the container.
    pub path: PathBuf,
    /// True for a block device, false for a character device.
    pub block: bool,
    /// Major number of the device.
    pub major: u32,
    /// Minor number of the device.
    pub minor: u32,
    /// Permissions of the container on the device.
    pub permissions: DevicePermissions,
    /// Owner and permission bits. If unset, the host's root owns the node, and all container processes can open the
    /// node.
    pub access: Option<NodeAccess>,
    /// True if the node is created in the container's /dev itself, where a privileged process can change it. Otherwise
    /// the node is a mount.
    pub is_in_place: bool,
}

/// Owner and permission bits of a device node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeAccess {
    /// Permission bits, restricted to the container's permissions.
    pub mode: u32,
    /// Owner, as an id in the container.
    pub uid: u32,
    /// Group, as an id in the container.
    pub gid: u32,
}

impl DeviceNode {
    /// Returns the permission bits of the node.
    pub fn mode(&self) -> u32 {
        let (read, write) = (u32::from(self.permissions.read), u32::from(self.permissions.write));
        let permitted = (read * 0o444) | (write * 0o222);
        self.access.map_or(permitted, |access| permitted & access.mode)
    }
}
