//! Converts the volumes of a request for validation.

use executor_core::plan::{EmptyVolume, HostPath, Medium, Propagation, VOLUME_MODE_DEFAULT, Volume, VolumeSource};
use executor_core::validate::ViolationReason::{Required, UnknownValue};
use executor_core::validate::{VOLUMES_MAX, Violation};
use executor_proto::v1::{self, RunRequest, volume_mount::Source};

use crate::images;

/// Returns the volumes of a request, with placeholders for images. An overlong list is converted only up to the length
/// at which validation rejects it.
pub(super) fn from_request(request: &RunRequest, violations: &mut Vec<Violation>) -> Vec<Volume> {
    let listed = request.volumes.iter().take(VOLUMES_MAX + 1).enumerate();
    listed.map(|(index, asked)| volume(index, asked, violations)).collect()
}

fn volume(index: usize, asked: &v1::VolumeMount, violations: &mut Vec<Violation>) -> Volume {
    let source = match &asked.source {
        Some(Source::Empty(asked)) => VolumeSource::Empty(empty(index, asked, violations)),
        Some(Source::Host(named)) => VolumeSource::Host(named.name.clone()),
        Some(Source::Image(image)) => VolumeSource::Image(images::volume_placeholder(&image.reference)),
        Some(Source::HostPath(asked)) => VolumeSource::HostPath(host_path(index, asked, violations)),
        Some(Source::Pod(named)) => VolumeSource::Pod(named.name.clone()),
        None => {
            let why = "is not set: set `empty`, `host`, `host_path`, `image` or `pod`";
            violations.push(Violation::new(format!("volumes[{index}].source"), Required.because(why)));
            // Keep the position, because violations refer to indices.
            return Volume {
                path: asked.path.clone().into(),
                source: VolumeSource::Empty(EmptyVolume {
                    medium: Medium::Disk,
                    bytes: 0,
                    mode: VOLUME_MODE_DEFAULT,
                    gid: None,
                }),
                sub_path: "".into(),
                read_only: false,
            };
        }
    };
    let (path, sub_path) = (asked.path.clone().into(), asked.sub_path.clone().into());
    Volume { path, source, sub_path, read_only: asked.read_only }
}

pub(super) fn empty(index: usize, volume: &v1::EmptyVolume, violations: &mut Vec<Violation>) -> EmptyVolume {
    let medium = medium(volume.medium).unwrap_or_else(|why| {
        violations.push(Violation::new(format!("volumes[{index}].empty.medium"), UnknownValue.because(why)));
        Medium::Disk
    });
    EmptyVolume { medium, bytes: volume.size_bytes, mode: volume.mode.unwrap_or(VOLUME_MODE_DEFAULT), gid: volume.gid }
}

fn host_path(index: usize, asked: &v1::HostPath, violations: &mut Vec<Violation>) -> HostPath {
    let propagation = match asked.propagation {
        0 => Propagation::Private,
        1 => Propagation::HostToContainer,
        2 => Propagation::Bidirectional,
        number => {
            let why = format!("is {number}; 0 (private), 1 (host to container) and 2 (bidirectional) are allowed");
            let field = format!("volumes[{index}].host_path.propagation");
            violations.push(Violation::new(field, UnknownValue.because(why)));
            Propagation::Private
        }
    };
    let v1::HostPath { recursive, recursive_read_only, suid, dev, follow_links, .. } = *asked;
    HostPath { path: asked.path.clone().into(), propagation, recursive, recursive_read_only, suid, dev, follow_links }
}

fn medium(number: i32) -> Result<Medium, String> {
    match number {
        0 => Ok(Medium::Disk),
        1 => Ok(Medium::Memory),
        _ => Err(format!("is {number}; 0 (disk) and 1 (memory) are allowed")),
    }
}

#[cfg(test)]
mod tests {
    use executor_proto::v1::VolumeMount;

    use super::*;

    #[test]
    fn invalid_volumes_keep_their_indices() {
        let empty = |medium| Some(Source::Empty(v1::EmptyVolume { medium, ..Default::default() }));
        let mount = |source| VolumeMount { path: "/a".into(), source, ..Default::default() };
        let request = RunRequest { volumes: vec![mount(None), mount(empty(2)), mount(empty(1))], ..Default::default() };
        let mut violations = Vec::new();
        let volumes = from_request(&request, &mut violations);
        let fields: Vec<&str> = violations.iter().map(|violation| &*violation.field).collect();
        assert_eq!(fields, ["volumes[0].source", "volumes[1].empty.medium"]);
        let last = EmptyVolume { medium: Medium::Memory, bytes: 0, mode: 0o1777, gid: None };
        assert_eq!((volumes.len(), volumes[2].empty()), (3, Some(&last)));
        let many = RunRequest { volumes: vec![mount(empty(0)); 10_000], ..Default::default() };
        assert_eq!(from_request(&many, &mut violations).len(), VOLUMES_MAX + 1);
    }
}
