//! Lowers mounts and devices: rules C24 to C26.

use std::collections::BTreeMap;

use executor_client::v1::host_path::Propagation;
use executor_client::v1::volume_mount::Source;
use executor_client::v1::{DeviceMount, HostPath, ImageVolume, VolumeMount};
use executor_core::plan::DEV;
use executor_cri_api::v1::{ContainerConfig, Mount, MountPropagation};

use crate::failure::Violations;
use crate::secrets::RequestSecrets;

/// Lowers the mounts of a container, and sorts them by depth. `images` has the references of manifests by image id.
/// Mounts that secret files replace are omitted.
pub(super) fn lower(
    config: &ContainerConfig,
    images: &BTreeMap<String, String>,
    secrets: &RequestSecrets,
    is_privileged: bool,
    violations: &mut Violations,
) -> Vec<VolumeMount> {
    let mut volumes = Vec::new();
    for (index, mount) in config.mounts.iter().enumerate() {
        let field = format!("config.mounts[{index}]");
        if !mount.mount_options.is_empty() {
            violations.add(&format!("{field}.mount_options"), "not supported");
        }
        let lowered = volume(mount, images, &field, is_privileged, violations);
        volumes.extend(lowered.filter(|_| !secrets.replaces(index)));
    }
    volumes.sort_by_key(|volume| volume.path.split('/').filter(|name| !name.is_empty()).count());
    volumes
}

fn volume(
    mount: &Mount,
    images: &BTreeMap<String, String>,
    field: &str,
    is_privileged: bool,
    violations: &mut Violations,
) -> Option<VolumeMount> {
    if mount.container_path.is_empty() {
        violations.add(&format!("{field}.container_path"), "required");
        return None;
    }
    let path = format!("/{}", mount.container_path.trim_matches('/'));
    let image = mount.image.clone().unwrap_or_default();
    if !image.image.is_empty() {
        let reference = images.get(&image.image_ref).cloned().unwrap_or_default();
        if !mount.readonly {
            violations.add(&format!("{field}.readonly"), "an image can only be mounted read-only");
        }
        let source = Some(Source::Image(ImageVolume { reference }));
        return Some(VolumeMount { path, source, sub_path: mount.image_sub_path.clone(), read_only: true });
    }
    if mount.host_path.is_empty() {
        violations.add(&format!("{field}.host_path"), "required");
        return None;
    }
    let propagation = match mount.propagation() {
        MountPropagation::PropagationPrivate => Propagation::Private,
        MountPropagation::PropagationHostToContainer => Propagation::HostToContainer,
        MountPropagation::PropagationBidirectional if is_privileged => Propagation::Bidirectional,
        MountPropagation::PropagationBidirectional => {
            violations.add(&format!("{field}.propagation"), "BIDIRECTIONAL requires a privileged container");
            Propagation::Bidirectional
        }
    };
    if mount.recursive_read_only {
        if !mount.readonly {
            violations.add(&format!("{field}.recursive_read_only"), "requires readonly");
        }
        if propagation != Propagation::Private {
            violations.add(&format!("{field}.recursive_read_only"), "requires PROPAGATION_PRIVATE");
        }
    }
    let source = Some(Source::HostPath(HostPath {
        path: mount.host_path.clone(),
        propagation: propagation.into(),
        recursive: true,
        recursive_read_only: mount.recursive_read_only,
        suid: false,
        dev: is_privileged,
        follow_links: true,
    }));
    Some(VolumeMount { path, source, sub_path: String::new(), read_only: mount.readonly })
}

/// Lowers the devices of a container (rule C26). Requested devices are added even if the container has all devices of
/// the host, because their paths can differ.
pub(super) fn devices(config: &ContainerConfig, has_all: bool, violations: &mut Violations) -> Vec<DeviceMount> {
    let mut devices = Vec::new();
    for (index, device) in config.devices.iter().enumerate() {
        if device.host_path.is_empty() {
            violations.add(&format!("config.devices[{index}].host_path"), "required");
        }
        devices.push(DeviceMount {
            host_path: device.host_path.clone(),
            path: device.container_path.clone(),
            permissions: device.permissions.clone(),
            name: String::new(),
        });
    }
    let by_name = config.cdi_devices.iter().map(|device| device.name.clone());
    devices.extend(by_name.map(|name| DeviceMount { name, ..DeviceMount::default() }));
    devices.extend(has_all.then(|| DeviceMount { host_path: DEV.into(), ..DeviceMount::default() }));
    devices
}

#[cfg(test)]
mod tests {
    use super::*;
    use executor_cri_api::v1::ImageSpec;

    fn lowered(mounts: Vec<Mount>, is_privileged: bool) -> Result<Vec<VolumeMount>, String> {
        let mut violations = Violations::default();
        let config = ContainerConfig { mounts, ..ContainerConfig::default() };
        let volumes = lower(&config, &BTreeMap::new(), &RequestSecrets::default(), is_privileged, &mut violations);
        violations.check().map(|()| volumes).map_err(|status| status.message().to_owned())
    }

    fn mount(container_path: &str, host_path: &str) -> Mount {
        Mount { container_path: container_path.into(), host_path: host_path.into(), ..Mount::default() }
    }

    /// Rule C24: mounts are sorted by depth, and include the mounts below their sources.
    #[test]
    fn mounts_are_ordered_by_depth() {
        let volumes = lowered(vec![mount("/a/b/", "/x"), mount("a", "/y")], false).unwrap();
        let paths: Vec<_> = volumes.iter().map(|volume| &*volume.path).collect();
        assert_eq!(paths, ["/a", "/a/b"]);
        let Some(Source::HostPath(path)) = &volumes[0].source else { panic!() };
        assert!(path.recursive && path.follow_links && !path.suid && !path.dev);
    }

    /// Rule C25: every invalid mount is refused by name.
    #[test]
    fn impossible_mounts_are_refused() {
        let bidirectional = Mount { propagation: 2, ..mount("/a", "/x") };
        let recursive = Mount { recursive_read_only: true, propagation: 1, ..mount("/b", "/x") };
        let image = Mount { image: Some(ImageSpec { image: "i".into(), ..Default::default() }), ..mount("/c", "") };
        let none = mount("/d", "");
        let error = lowered(vec![bidirectional.clone(), recursive, image, none], false).unwrap_err();
        for part in [
            "mounts[0].propagation",
            "requires readonly",
            "requires PROPAGATION_PRIVATE",
            "mounts[2].readonly",
            "mounts[3].host_path",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(lowered(vec![bidirectional], true).is_ok());
    }
}
