//! An executord: version, directories and capacity.

use std::collections::BTreeMap;

use executor_cli_kit::view::json::time;
use executor_client::v1;
use serde::Serialize;

use super::sorted;
use super::sources::SecretProvider;
use crate::view::human::mount_kind;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Info {
    version: String,
    socket: String,
    kernel: String,
    cgroups: String,
    secret_mount_kind: String,
    launcher_connected: bool,
    /// Process ids on the host. `launcher_pid` is null if no launcher is connected.
    pid: u32,
    launcher_pid: Option<u32>,
    started_at: Option<String>,
    uid: u32,
    cursor: u64,
    run_dir: String,
    state_dir: String,
    files_root: String,
    image_policy: Option<ImagePolicy>,
    volumes: Vec<HostVolume>,
    devices: Vec<HostDevice>,
    apparmor_profiles: Vec<String>,
    warm_pool: Option<WarmPool>,
    secret_providers: Vec<SecretProvider>,
    /// Names of the features of this executord.
    features: Vec<String>,
    total: Option<Capacity>,
    remaining: Option<Capacity>,
    /// Capacity held by containers and reservations.
    allocated: Option<Capacity>,
    /// Capacity held by reservations.
    reserved: Option<Capacity>,
    reservations: u32,
    health: Option<super::Health>,
    /// Number of containers and pods that do not change their state in time.
    quarantined: u32,
    containers: BTreeMap<String, u32>,
    disk_usage: Option<DiskUsage>,
    /// Host directories below which containers may mount any path, and host files that they may mount.
    host_paths: Vec<String>,
    /// Host device nodes, and directories of nodes, that containers may use by path.
    device_paths: Vec<String>,
    log_dirs: Vec<String>,
    /// CDI devices that containers may use.
    cdi_devices: Vec<String>,
}

/// Usage of the state directory's file system.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct DiskUsage {
    total_bytes: u64,
    available_bytes: u64,
    /// Logs, outputs and records of completed containers, as measured within the last minute.
    completed_bytes: u64,
}

/// A host directory that containers may mount.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct HostVolume {
    name: String,
    path: String,
    read_only: bool,
}

/// A host device that containers may use.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct HostDevice {
    name: String,
    path: String,
    permissions: String,
}

/// Warm containers, and runs that could use a warm container.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct WarmPool {
    configured: u32,
    ready: u32,
    used: u64,
    missed: u64,
}

/// Rules on the images that may run; if `set` is false, every image may run.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ImagePolicy {
    set: bool,
    allow: Vec<String>,
    allow_import: bool,
    allow_archives: bool,
    signed: Vec<SignedImages>,
}

/// Images that must be signed, with the SHA-256 of each key.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SignedImages {
    images: Vec<String>,
    keys: Vec<String>,
    repository: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Capacity {
    memory_bytes: u64,
    pids: u64,
    containers: u64,
    disk_bytes: u64,
}

impl Info {
    pub(crate) fn new(info: &v1::InfoResponse, socket: String) -> Self {
        let capacity = |capacity: v1::Capacity| Capacity {
            memory_bytes: capacity.memory_bytes,
            pids: capacity.pids,
            containers: capacity.containers,
            disk_bytes: capacity.disk_bytes,
        };
        Self {
            version: info.version.clone(),
            socket,
            kernel: info.kernel.clone(),
            cgroups: info.cgroups.clone(),
            secret_mount_kind: mount_kind(info.secret_mount_kind),
            launcher_connected: info.launcher_connected,
            pid: info.pid,
            launcher_pid: Some(info.launcher_pid).filter(|pid| *pid != 0),
            started_at: time(info.started_at.as_ref()),
            uid: info.uid,
            cursor: info.cursor,
            run_dir: info.run_dir.clone(),
            state_dir: info.state_dir.clone(),
            files_root: info.files_root.clone(),
            image_policy: info.image_policy.as_ref().map(|policy| ImagePolicy {
                set: policy.set,
                allow: policy.allow.clone(),
                allow_import: policy.allow_import,
                allow_archives: policy.allow_archives,
                signed: policy.signed.iter().map(signed).collect(),
            }),
            volumes: info.volumes.iter().map(volume).collect(),
            devices: info.devices.iter().map(device).collect(),
            apparmor_profiles: info.apparmor_profiles.clone(),
            warm_pool: info.warm_pool.map(|warm_pool| WarmPool {
                configured: warm_pool.configured,
                ready: warm_pool.ready,
                used: warm_pool.used,
                missed: warm_pool.missed,
            }),
            secret_providers: info.secret_providers.iter().map(SecretProvider::from).collect(),
            features: info.features.clone(),
            total: info.total.map(capacity),
            remaining: info.remaining.map(capacity),
            allocated: info.allocated.map(capacity),
            reserved: info.reserved.map(capacity),
            reservations: info.reservations,
            health: info.health.as_ref().map(super::Health::from),
            quarantined: info.quarantined,
            host_paths: info.host_paths.clone(),
            device_paths: info.device_paths.clone(),
            log_dirs: info.log_dirs.clone(),
            cdi_devices: info.cdi_devices.clone(),
            disk_usage: info.disk_usage.map(|disk| DiskUsage {
                total_bytes: disk.total_bytes,
                available_bytes: disk.available_bytes,
                completed_bytes: disk.completed_bytes,
            }),
            containers: sorted(&info.containers),
        }
    }
}

fn volume(volume: &v1::HostVolume) -> HostVolume {
    HostVolume { name: volume.name.clone(), path: volume.path.clone(), read_only: volume.read_only }
}

fn device(device: &v1::HostDevice) -> HostDevice {
    HostDevice { name: device.name.clone(), path: device.path.clone(), permissions: device.permissions.clone() }
}

fn signed(rule: &v1::SignedImages) -> SignedImages {
    SignedImages { images: rule.images.clone(), keys: rule.keys.clone(), repository: rule.repository }
}
