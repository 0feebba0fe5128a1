//! Converts host devices and resource limits to API messages.

use executor_core::plan::{Device, HostDevice, Ulimit};
use executor_proto::v1;

pub(super) fn device(device: &Device) -> v1::DeviceMount {
    let Device { name, host_path, path, permissions } = device;
    v1::DeviceMount {
        host_path: host_path.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
        name: name.clone(),
        path: path.display().to_string(),
        permissions: permissions.clone(),
    }
}

pub(super) fn ulimit(ulimit: &Ulimit) -> v1::Ulimit {
    v1::Ulimit { name: ulimit.name.clone(), soft: ulimit.soft, hard: ulimit.hard }
}

/// Converts a configured host device to its API message.
pub(in crate::api) fn host_device(device: &HostDevice) -> v1::HostDevice {
    let HostDevice { name, path, permissions } = device;
    v1::HostDevice { name: name.clone(), path: path.display().to_string(), permissions: permissions.clone() }
}
