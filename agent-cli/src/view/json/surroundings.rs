//! Environment of a container: file systems, kernel parameters, host names.

use std::collections::BTreeMap;

use executor_client::v1::host_path::Propagation;
use executor_client::v1::volume_mount::Source;
use executor_client::v1::{self, ContainerSpec};
use serde::Serialize;

use crate::view::human::word;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Surroundings {
    tmpfs: Vec<Tmpfs>,
    shm_bytes: u64,
    sysctls: BTreeMap<String, String>,
    extra_hosts: Vec<ExtraHost>,
    init: bool,
    volumes: Vec<Volume>,
}

/// A volume, from one of five sources.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Volume {
    path: String,
    empty: Option<EmptyVolume>,
    host: Option<NamedVolume>,
    host_path: Option<HostPath>,
    image: Option<ImageVolume>,
    pod: Option<PodVolumeName>,
    sub_path: String,
    read_only: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct EmptyVolume {
    medium: String,
    size_bytes: u64,
    mode: String,
    gid: Option<u32>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct IdMapping {
    container_id: u32,
    host_id: u32,
    length: u32,
}

impl From<&v1::IdMapping> for IdMapping {
    fn from(mapping: &v1::IdMapping) -> Self {
        let v1::IdMapping { container_id, host_id, length } = *mapping;
        Self { container_id, host_id, length }
    }
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct NamedVolume {
    name: String,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct HostPath {
    path: String,
    propagation: String,
    recursive: bool,
    recursive_read_only: bool,
    suid: bool,
    dev: bool,
    follow_links: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ImageVolume {
    reference: String,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct PodVolumeName {
    name: String,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Tmpfs {
    path: String,
    size_bytes: u64,
    mode: String,
    uid: u32,
    gid: u32,
    exec: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ExtraHost {
    name: String,
    address: String,
}

impl From<&v1::VolumeMount> for Volume {
    fn from(volume: &v1::VolumeMount) -> Self {
        let (mut empty, mut host, mut host_path, mut image, mut pod) = (None, None, None, None, None);
        match &volume.source {
            Some(Source::Empty(of)) => empty = Some(EmptyVolume::from(of)),
            Some(Source::Host(of)) => host = Some(NamedVolume { name: of.name.clone() }),
            Some(Source::HostPath(of)) => host_path = Some(HostPath::from(of)),
            Some(Source::Image(of)) => image = Some(ImageVolume { reference: of.reference.clone() }),
            Some(Source::Pod(of)) => pod = Some(PodVolumeName { name: of.name.clone() }),
            None => {}
        }
        let (path, sub_path) = (volume.path.clone(), volume.sub_path.clone());
        Self { path, empty, host, host_path, image, pod, sub_path, read_only: volume.read_only }
    }
}

impl From<&v1::HostPath> for HostPath {
    fn from(path: &v1::HostPath) -> Self {
        let propagation = match path.propagation() {
            Propagation::Private => "private",
            Propagation::HostToContainer => "host-to-container",
            Propagation::Bidirectional => "bidirectional",
        };
        Self {
            path: path.path.clone(),
            propagation: propagation.to_owned(),
            recursive: path.recursive,
            recursive_read_only: path.recursive_read_only,
            suid: path.suid,
            dev: path.dev,
            follow_links: path.follow_links,
        }
    }
}

impl From<&v1::EmptyVolume> for EmptyVolume {
    fn from(empty: &v1::EmptyVolume) -> Self {
        let mode = format!("{:04o}", empty.mode.unwrap_or(0));
        Self { medium: medium(empty), size_bytes: empty.size_bytes, mode, gid: empty.gid }
    }
}

impl From<&v1::ExtraHost> for ExtraHost {
    fn from(host: &v1::ExtraHost) -> Self {
        Self { name: host.name.clone(), address: host.address.clone() }
    }
}

fn medium(empty: &v1::EmptyVolume) -> String {
    word(empty.medium().as_str_name(), "MEDIUM_")
}

impl From<&ContainerSpec> for Surroundings {
    fn from(spec: &ContainerSpec) -> Self {
        let tmpfs = spec.tmpfs.iter().map(|one| Tmpfs {
            path: one.path.clone(),
            size_bytes: one.size_bytes,
            mode: format!("{:04o}", one.mode.unwrap_or(0)),
            uid: one.uid,
            gid: one.gid,
            exec: one.exec,
        });
        Self {
            tmpfs: tmpfs.collect(),
            shm_bytes: spec.shm_bytes,
            init: spec.init,
            volumes: spec.volumes.iter().map(Volume::from).collect(),
            sysctls: super::sorted(&spec.sysctls),
            extra_hosts: spec.extra_hosts.iter().map(ExtraHost::from).collect(),
        }
    }
}
