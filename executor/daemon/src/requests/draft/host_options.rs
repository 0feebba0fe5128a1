//! Converts CPU sets, devices, confinement and process attributes of a request.

use std::path::PathBuf;

use executor_core::plan::{Device, HostOptions, Ulimit};
use executor_proto::v1::{DeviceMount, Limits, RunRequest};

pub(super) fn from_request(request: &RunRequest, limits: &Limits) -> HostOptions {
    let device = |asked: &DeviceMount| Device {
        name: asked.name.clone(),
        host_path: Some(&asked.host_path).filter(|path| !path.is_empty()).map(PathBuf::from),
        path: asked.path.clone().into(),
        permissions: asked.permissions.clone(),
    };
    let ulimits = request.ulimits.iter();
    HostOptions {
        cpus: limits.cpuset_cpus.clone(),
        memory_nodes: limits.cpuset_mems.clone(),
        oom_score_adj: request.oom_score_adj,
        ulimits: ulimits.map(|asked| Ulimit { name: asked.name.clone(), soft: asked.soft, hard: asked.hard }).collect(),
        apparmor_profile: request.apparmor_profile.clone(),
        devices: request.devices.iter().map(device).collect(),
        cgroup_parent: request.cgroup_parent.clone().into(),
        hugepage_bytes: limits.hugepage_bytes.iter().map(|(size, bytes)| (size.clone(), *bytes)).collect(),
        unified: limits.unified.iter().map(|(file, value)| (file.clone(), value.clone())).collect(),
    }
}
