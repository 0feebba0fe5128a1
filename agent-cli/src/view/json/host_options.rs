//! Devices, confinement and process attributes of a container.

use executor_client::v1::ContainerSpec;
use serde::Serialize;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct HostOptions {
    devices: Vec<DeviceMount>,
    apparmor_profile: Option<String>,
    oom_score_adj: Option<i32>,
    ulimits: Vec<Ulimit>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct DeviceMount {
    name: String,
    host_path: String,
    path: String,
    permissions: String,
}

/// A resource limit of each process; -1 for no limit.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Ulimit {
    name: String,
    soft: i64,
    hard: i64,
}

impl From<&ContainerSpec> for HostOptions {
    fn from(spec: &ContainerSpec) -> Self {
        let devices = spec.devices.iter().map(|one| DeviceMount {
            name: one.name.clone(),
            host_path: one.host_path.clone(),
            path: one.path.clone(),
            permissions: one.permissions.clone(),
        });
        let ulimits = spec.ulimits.iter();
        Self {
            devices: devices.collect(),
            apparmor_profile: Some(spec.apparmor_profile.clone()).filter(|name| !name.is_empty()),
            oom_score_adj: spec.oom_score_adj,
            ulimits: ulimits.map(|one| Ulimit { name: one.name.clone(), soft: one.soft, hard: one.hard }).collect(),
        }
    }
}
