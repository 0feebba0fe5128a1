//! Converts volumes to API messages.

use executor_core::plan::{EmptyVolume, HostPath, HostVolume, Medium, Plan, Propagation, Volume, VolumeSource};
use executor_proto::v1::{self, empty_volume, volume_mount::Source};

/// Converts a volume to its API message.
pub(super) fn mount(volume: &Volume) -> v1::VolumeMount {
    let source = match &volume.source {
        VolumeSource::Empty(volume) => Source::Empty(empty(volume)),
        VolumeSource::Host(name) => Source::Host(v1::NamedVolume { name: name.clone() }),
        VolumeSource::Image(image) => Source::Image(v1::ImageVolume { reference: image.reference.clone() }),
        VolumeSource::HostPath(asked) => Source::HostPath(host_path(asked)),
        VolumeSource::Pod(name) => Source::Pod(v1::PodVolumeName { name: name.clone() }),
    };
    v1::VolumeMount {
        path: volume.path.display().to_string(),
        source: Some(source),
        sub_path: volume.sub_path.display().to_string(),
        read_only: volume.read_only,
    }
}

fn host_path(asked: &HostPath) -> v1::HostPath {
    let HostPath { path, propagation, recursive, recursive_read_only, suid, dev, follow_links } = asked;
    let propagation = match propagation {
        Propagation::Private => v1::host_path::Propagation::Private,
        Propagation::HostToContainer => v1::host_path::Propagation::HostToContainer,
        Propagation::Bidirectional => v1::host_path::Propagation::Bidirectional,
    };
    v1::HostPath {
        path: path.display().to_string(),
        propagation: propagation.into(),
        recursive: *recursive,
        recursive_read_only: *recursive_read_only,
        suid: *suid,
        dev: *dev,
        follow_links: *follow_links,
    }
}

pub(super) fn empty(EmptyVolume { medium, bytes, mode, gid }: &EmptyVolume) -> v1::EmptyVolume {
    let medium = match medium {
        Medium::Disk => empty_volume::Medium::Disk,
        Medium::Memory => empty_volume::Medium::Memory,
    };
    v1::EmptyVolume { medium: medium.into(), size_bytes: *bytes, mode: Some(*mode), gid: *gid }
}

/// Returns the images of a plan's volumes.
pub(super) fn images(plan: &Plan) -> Vec<v1::ImageInUse> {
    let images = plan.volumes.iter().filter_map(Volume::image);
    images.map(|image| v1::ImageInUse { reference: image.reference.clone(), digest: image.digest.clone() }).collect()
}

pub(in crate::api) fn host(volume: &HostVolume) -> v1::HostVolume {
    let HostVolume { name, path, read_only } = volume;
    v1::HostVolume { name: name.clone(), path: path.display().to_string(), read_only: *read_only }
}
