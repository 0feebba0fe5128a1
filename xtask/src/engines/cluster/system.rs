//! The kubelet's configuration, and the pods of the system: kube-proxy as a DaemonSet, CoreDNS and metrics-server.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};

use super::kubectl::{Cluster, condition};
use crate::engines::site::{ADDRESS, Site};

/// Maximum memory of the node's pods, in KiB. The kubelet evicts pods if they use more.
const MEMORY: u64 = 2 << 20;
/// Manifest of the system's pods, with placeholders.
const MANIFEST: &str = include_str!("system.yaml");

/// Writes the configuration of a node's kubelet, and returns its arguments.
pub(super) fn write_kubelet_configuration(site: &Site, socket: &Path) -> anyhow::Result<Vec<String>> {
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let total: u64 = total.context("/proc/meminfo has no MemTotal")?.parse()?;
    ensure!(total > MEMORY, "the machine has {total} KiB of memory; more than {MEMORY} KiB are required");
    let (file, config) = (site.directory.join("kubelet.yaml"), site.directory.join("kubelet.kubeconfig"));
    fs::write(&file, settings(site, socket, total - MEMORY))?;
    Ok(["--config".into(), file.display().to_string(), "--kubeconfig".into(), config.display().to_string()].into())
}

/// Returns the kubelet's configuration: the defaults, except for authentication and for intervals that would slow the
/// cases down.
fn settings(site: &Site, socket: &Path, reserved: u64) -> String {
    let Site { address, cgroup, directory, .. } = site;
    let (directory, socket) = (directory.display(), socket.display());
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://{socket}
volumePluginDir: {directory}/plugins
cgroupRoot: /{cgroup}
failCgroupV1: false
failSwapOn: false
seccompDefault: true
address: {address}
readOnlyPort: 0
tlsCertFile: {directory}/pki/kubelet-server.crt
tlsPrivateKeyFile: {directory}/pki/kubelet-server.key
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: {directory}/pki/ca.crt}}}}
authorization: {{mode: Webhook}}
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
systemReserved: {{memory: {reserved}Ki}}
evictionHard: {{memory.available: 100Mi, nodefs.available: 10%, nodefs.inodesFree: 5%, imagefs.available: 10%}}
evictionPressureTransitionPeriod: 20s
nodeStatusUpdateFrequency: 5s
syncFrequency: 5s
volumeStatsAggPeriod: 10s
"
    )
}

/// Starts the pods of the system, and waits until they are ready.
pub(super) fn start(cluster: &Cluster) -> anyhow::Result<()> {
    cluster.apply(&MANIFEST.replace("@ADDRESS@", ADDRESS))?;
    for name in ["daemonset/kube-proxy", "deployment/coredns", "deployment/metrics-server"] {
        cluster.kubectl(&["rollout", "status", "--namespace", "kube-system", name, "--timeout", "180s"])?;
    }
    let is_served = || {
        let service = cluster.get(&["apiservice", "v1beta1.metrics.k8s.io"])?;
        Ok(condition(&service, "Available").then_some(()))
    };
    cluster.until("metrics.k8s.io is served", is_served)
}
