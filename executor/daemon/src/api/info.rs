//! Info: returns the version, the capacity and the state of this node.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use executor_core::image::ImagePolicy;
use executor_core::protocol::WarmPool;
use executor_core::record::VolumeKind;
use executor_images::signatures::SignaturePolicy;
use executor_proto::v1;

use super::convert;
use crate::launcher::Session;
use crate::node::Node;

/// Time limit for the launcher to count its warm containers. After this time the response omits the counts.
const WARM_POOL_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) async fn info(node: &Node) -> v1::InfoResponse {
    let capacity = node.registry.capacity();
    let mut containers: HashMap<String, u32> = HashMap::new();
    let mut quarantined = 0;
    node.registry.visit(None, |handle| {
        quarantined += u32::from(handle.facts().is_some_and(|facts| facts.quarantine.is_some()));
        if let Some(state) = handle.state().filter(|_| !handle.is_pod()) {
            *containers.entry(state.name().to_owned()).or_default() += 1;
        }
        true
    });
    let session = node.launcher.session().ok();
    let kind = session.as_ref().map_or(v1::MountKind::Unspecified, |session| {
        convert::mount_kind(if session.noswap() { VolumeKind::TmpfsNoswap } else { VolumeKind::Ramfs })
    });
    let warm_pool = match &session {
        Some(session) => warm_pool(session).await,
        None => None,
    };
    v1::InfoResponse {
        version: executor_secrets::VERSION.to_owned(),
        total: Some(convert::capacity(capacity.total)),
        remaining: Some(convert::capacity(capacity.remaining)),
        allocated: Some(convert::capacity(capacity.allocated)),
        reserved: Some(convert::capacity(capacity.reserved)),
        reservations: u32::try_from(capacity.reservations).unwrap_or(u32::MAX),
        containers,
        secret_mount_kind: kind.into(),
        cgroups: session.as_ref().map(|session| session.cgroups().to_owned()).unwrap_or_default(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        launcher_connected: session.is_some(),
        started_at: Some(convert::timestamp(node.started_at)),
        uid: rustix::process::geteuid().as_raw(),
        cursor: node.events.newest(),
        run_dir: node.config.paths.run_dir.display().to_string(),
        state_dir: node.config.paths.state_dir.display().to_string(),
        files_root: node.config.policy.files_root.display().to_string(),
        image_policy: Some(image_policy(&node.config.policy.images, node.images.signatures())),
        volumes: node.config.policy.volumes.iter().map(convert::host_volume).collect(),
        devices: node.config.policy.devices.iter().map(convert::host_device).collect(),
        apparmor_profiles: node.config.policy.apparmor_profiles.clone(),
        warm_pool,
        health: Some(health(node)),
        quarantined,
        pid: std::process::id(),
        launcher_pid: session.as_ref().map_or(0, |session| session.pid()),
        features: FEATURES.iter().map(ToString::to_string).collect(),
        disk_usage: disk_usage(node),
        cdi_devices: node.config.policy.cdi_devices.clone(),
        host_paths: node.config.policy.host_paths.iter().map(|rule| rule.path.display().to_string()).collect(),
        device_paths: node.config.policy.device_paths.iter().map(|path| path.display().to_string()).collect(),
        log_dirs: node.config.policy.log_dirs.iter().map(|dir| dir.display().to_string()).collect(),
        secret_providers: node.providers.statuses().into_iter().map(convert::secret_provider).collect(),
    }
}

/// Feature names of this version, sorted. The names are documented at `InfoResponse.features` and never removed.
const FEATURES: [&str; 23] = [
    "actions",
    "attach",
    "connect-port",
    "egress-rules",
    "exact-event-gaps",
    "exec-timeout",
    "hold",
    "identity",
    "image-store-usage",
    "keep-until-deleted",
    "limits-update",
    "log-files",
    "logs-until",
    "network-checks",
    "networks",
    "pause",
    "pods",
    "provider-tokens",
    "reservations",
    "restarts",
    "secret-references",
    "strict-fields",
    "validate",
];

/// Returns the usage of the state directory's file system; `None` if the system call fails.
fn disk_usage(node: &Node) -> Option<v1::DiskUsage> {
    let about = rustix::fs::statvfs(&node.config.paths.state_dir).ok()?;
    Some(v1::DiskUsage {
        total_bytes: about.f_blocks.saturating_mul(about.f_frsize),
        available_bytes: about.f_bavail.saturating_mul(about.f_frsize),
        completed_bytes: node.completed_bytes.load(Ordering::Relaxed),
    })
}

/// Returns the health of the cell, with the reasons why the daemon cannot serve.
pub(super) fn health(node: &Node) -> v1::Health {
    let unready = match node.launcher.session() {
        _ if *node.stopping.borrow() => Some("executord is stopping".to_owned()),
        Err(problem) => Some(problem.message),
        Ok(_) if !*node.settled.borrow() => Some("still searching for containers of an earlier executord".to_owned()),
        Ok(session) => session.difference().map(str::to_owned),
    };
    let full = node.check_disk().err().map(|problem| problem.message);
    convert::health(&node.cell.state(), unready.into_iter().chain(full))
}

/// Returns the launcher's counts of warm containers; `None` if the launcher does not respond in time.
async fn warm_pool(session: &Session) -> Option<v1::WarmPool> {
    let WarmPool { configured, ready, used, missed } = session.warm_pool(WARM_POOL_TIMEOUT).await?;
    Some(v1::WarmPool { configured, ready, used, missed })
}

fn image_policy(policy: &ImagePolicy, signatures: &SignaturePolicy) -> v1::ImagePolicy {
    let signed = signatures.0.iter().map(|rule| v1::SignedImages {
        images: rule.images.iter().map(ToString::to_string).collect(),
        keys: rule.keys.iter().map(|key| key.id().to_owned()).collect(),
        repository: rule.repository,
    });
    v1::ImagePolicy {
        set: policy.is_set(),
        allow: policy.patterns().iter().map(ToString::to_string).collect(),
        allow_import: policy.may_import().is_ok(),
        allow_archives: policy.may_read_archives("").is_ok(),
        signed: signed.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::FEATURES;

    #[test]
    fn every_feature_is_sorted_and_documented() {
        let reference = include_str!("../../../../docs/api.md");
        assert!(FEATURES.is_sorted());
        for feature in FEATURES {
            assert!(reference.contains(&format!("`{feature}`: ")), "{feature}");
        }
    }
}
