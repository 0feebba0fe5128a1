//! Devices of the host in a container.

use std::path::PathBuf;

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
