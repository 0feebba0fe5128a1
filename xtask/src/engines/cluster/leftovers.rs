//! Searches the first node for resources of deleted pods.

use std::path::Path;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::kubectl::Cluster;

/// Kinds of resources whose names contain the uid of a pod, and shell scripts that print these uids. `$0` is the name
/// of the node's parent cgroup.
const PLACES: [(&str, &str); 4] = [
    ("the kubelet's directories", "ls /var/lib/kubelet/pods"),
    ("the mounts", "grep -o ' /var/lib/kubelet/pods/[^/]*' /proc/self/mountinfo | sed 's/.*\\///' | sort -u"),
    ("the logs", "ls /var/log/pods | sed 's/.*_//'"),
    ("the cgroups", "find /sys/fs/cgroup -path \"*/$0/*\" -name 'pod*' -type d | sed 's/.*pod//' | sort -u"),
];

/// Waits until no sandbox, directory, mount, log or cgroup of a deleted pod is left. The control: in each of
/// [`PLACES`], the running pods of the system are found.
pub(super) fn until_none(cluster: &Cluster) -> anyhow::Result<()> {
    let mut last = Vec::new();
    let is_clean = || {
        last = find(cluster)?;
        Ok(last.is_empty().then_some(()))
    };
    let done = cluster.until("no resources of deleted pods remain", is_clean);
    done.with_context(|| format!("resources of these deleted pods are left: {last:?}"))
}

/// Returns the uids of deleted pods that have resources.
fn find(cluster: &Cluster) -> anyhow::Result<Vec<String>> {
    let pods = cluster.get(&["pods", "--all-namespaces"])?;
    let pods = pods["items"].as_array().context("the JSON of kubectl has no list of pods")?;
    let uid = |pod: &Value| pod["metadata"]["uid"].as_str().map(str::to_owned);
    let is_of_system = |pod: &&Value| {
        let metadata = &pod["metadata"];
        let is_running = pod["status"]["phase"] == "Running" && metadata["deletionTimestamp"].is_null();
        metadata["namespace"] == "kube-system" && is_running
    };
    let uids: Vec<String> = pods.iter().filter_map(uid).collect();
    let system: Vec<String> = pods.iter().filter(is_of_system).filter_map(uid).collect();
    ensure!(!system.is_empty(), "control failed: no pod of kube-system runs");
    let sandboxes: Value = serde_json::from_str(&cluster.node.crictl(&["pods", "--output", "json"])?)?;
    let sandboxes = sandboxes["items"].as_array().context("the JSON of crictl has no list of sandboxes")?;
    let mut found: Vec<(&str, Vec<String>)> = vec![("the sandboxes", sandboxes.iter().filter_map(uid).collect())];
    for (place, script) in PLACES {
        let printed = cluster.node.output(Path::new("sh"), ["-c", script, cluster.node.cgroup()])?;
        found.push((place, printed.lines().map(str::to_owned).collect()));
    }
    for (place, present) in &found {
        let missing = system.iter().find(|uid| !present.contains(uid));
        ensure!(missing.is_none(), "control failed: {place} do not contain the running pod {missing:?}: {present:?}");
    }
    let has_network = |pod: &&Value| pod["spec"]["hostNetwork"] != true && pod["status"]["phase"] == "Running";
    let expected = pods.iter().filter(has_network).count();
    let leases = cluster.node.path("leases/engines").display().to_string();
    let leases = cluster.node.output(Path::new("sh"), ["-c", "ls $0 | grep -c '^10[.]'", &leases])?;
    let leases: usize = leases.trim().parse()?;
    ensure!(expected > 0, "control failed: no pod of kube-system has its own network");
    let found = found.into_iter().flat_map(|(_, present)| present);
    let mut left: Vec<String> = found.filter(|uid| !uids.contains(uid)).collect();
    if leases != expected {
        left.push(format!("{leases} leases of addresses for {expected} pods"));
    }
    Ok(left)
}
