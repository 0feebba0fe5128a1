//! A container's surroundings.

use std::collections::BTreeMap;

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

/// A volume, of one of three sources.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Volume {
    path: String,
    empty: Option<EmptyVolume>,
    host: Option<NamedVolume>,
    image: Option<ImageVolume>,
    sub_path: String,
    read_only: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct EmptyVolume {
    medium: String,
    size_bytes: u64,
    mode: String,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct NamedVolume {
    name: String,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ImageVolume {
    reference: String,
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
struct ExtraHost {
    name: String,
    address: String,
}

impl From<&v1::VolumeMount> for Volume {
    fn from(volume: &v1::VolumeMount) -> Self {
        let (mut empty, mut host, mut image) = (None, None, None);
        match &volume.source {
            Some(Source::Empty(of)) => {
                let mode = format!("{:04o}", of.mode.unwrap_or(0));
                empty = Some(EmptyVolume { medium: medium(of), size_bytes: of.size_bytes, mode });
            }
            Some(Source::Host(of)) => host = Some(NamedVolume { name: of.name.clone() }),
            Some(Source::Image(of)) => image = Some(ImageVolume { reference: of.reference.clone() }),
            None => {}
        }
        let (path, sub_path) = (volume.path.clone(), volume.sub_path.clone());
        Self { path, empty, host, image, sub_path, read_only: volume.read_only }
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
        let hosts = spec.extra_hosts.iter();
        Self {
            tmpfs: tmpfs.collect(),
            shm_bytes: spec.shm_bytes,
            init: spec.init,
            volumes: spec.volumes.iter().map(Volume::from).collect(),
            sysctls: super::sorted(&spec.sysctls),
            extra_hosts: hosts.map(|one| ExtraHost { name: one.name.clone(), address: one.address.clone() }).collect(),
        }
    }
}
