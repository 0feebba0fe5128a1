//! A container's surroundings.

use std::collections::BTreeMap;

use executor_client::v1::ContainerSpec;
use serde::Serialize;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Surroundings {
    tmpfs: Vec<Tmpfs>,
    shm_bytes: u64,
    sysctls: BTreeMap<String, String>,
    extra_hosts: Vec<ExtraHost>,
    init: bool,
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
            sysctls: super::sorted(&spec.sysctls),
            extra_hosts: hosts.map(|one| ExtraHost { name: one.name.clone(), address: one.address.clone() }).collect(),
        }
    }
}
