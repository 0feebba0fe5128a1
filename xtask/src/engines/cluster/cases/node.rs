//! Cases that run alone: the node is cordoned, drained or full, or its programs are killed.

use anyhow::{bail, ensure};
use serde_json::{Value, json};

use crate::engines::cluster::kubectl::{Cluster, condition};
use crate::engines::cluster::leftovers;
use crate::engines::cluster::space::{STAY, Space, WAIT, extend, pod};
use crate::engines::site::NAME;

pub(super) fn drained_node_runs_pods_after_uncordon(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "drain")?;
    space.deploy("web", 3, &pod(WAIT, json!({})))?;
    let before = names(&space.pods("web")?);
    let budget = json!({"minAvailable": 3, "selector": {"matchLabels": {"app": "web"}}});
    space.apply("policy/v1", "PodDisruptionBudget", "web", json!({"spec": budget}))?;
    let drain =
        ["drain", NAME, "--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector", "app=web", "--timeout"];
    // The disruption budget forbids the drain.
    let refused = cluster.kubectl(&[&drain[..], &["3s"]].concat());
    let Err(error) = refused else {
        bail!("kubectl drain succeeds although the disruption budget forbids an eviction")
    };
    ensure!(
        error.to_string().contains("disruption budget"),
        "kubectl drain fails, but not because of the disruption budget: {error:#}"
    );
    let kept = space.pods("web")?;
    let is_ending = |pod: &Value| !pod["metadata"]["deletionTimestamp"].is_null();
    ensure!(
        before.len() == 3 && names(&kept) == before && !kept.iter().any(is_ending),
        "a refused drain replaced pods: before {before:?}, after {kept:?}"
    );
    space.kubectl(&["delete", "poddisruptionbudget", "web"])?;
    cluster.kubectl(&[&drain[..], &["120s"]].concat())?;
    let is_pending = |pod: &Value| pod["status"]["phase"] == "Pending" && pod["spec"]["nodeName"].is_null();
    let are_replaced = || {
        let pods = space.pods("web")?;
        ensure!(pods.iter().all(is_pending), "pods run on the drained node {NAME}");
        Ok((pods.len() == 3).then_some(()))
    };
    cluster.until("three pods wait for a node", are_replaced)?;
    cluster.kubectl(&["uncordon", NAME])?;
    space.roll_out("deployment/web")?;
    let after = names(&space.pods("web")?);
    ensure!(
        after.iter().all(|name| !before.contains(name)),
        "pods were not replaced: before {before:?}, after {after:?}"
    );
    space.delete()
}

fn names(pods: &[Value]) -> Vec<String> {
    pods.iter().map(|pod| pod["metadata"]["name"].to_string()).collect()
}

pub(super) fn full_disk_evicts(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "disk")?;
    space.run("small", &pod(WAIT, json!({})))?;
    let fill = "fallocate -l $(($(df -k /v | awk 'END {print $4}') - 20480))k /v/x";
    let mut spec = pod(&format!("{fill}; {STAY}"), json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}));
    extend(&mut spec, json!({"volumes": [{"name": "v", "emptyDir": {}}]}));
    space.apply("v1", "Pod", "large", json!({"spec": spec}))?;
    evicted(cluster, &space, "DiskPressure")?;
    space.delete()
}

pub(super) fn exceeded_memory_evicts(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "memory")?;
    space.run("small", &pod(WAIT, json!({"resources": {"requests": {"memory": "64Mi"}}})))?;
    // The pods may use 2 GiB. The kubelet checks the memory every ten seconds.
    let script = format!(
        "i=0; while [ $i -lt 2100 ]; do dd if=/dev/zero of=/v/$i bs=1M count=20; i=$((i+20)); sleep 0.5; done; {STAY}"
    );
    let mut spec = pod(&script, json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}));
    extend(&mut spec, json!({"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]}));
    space.apply("v1", "Pod", "large", json!({"spec": spec}))?;
    evicted(cluster, &space, "MemoryPressure")?;
    space.delete()
}

/// Waits until the node reports the pressure and, after the eviction of the pod `large`, no longer reports it. The pod
/// `small` must keep running.
fn evicted(cluster: &Cluster, space: &Space<'_>, pressure: &str) -> anyhow::Result<()> {
    let before = ids(space)?;
    for (status, what) in [(true, "begins"), (false, "ends")] {
        let is_so = || Ok((condition(&cluster.get(&["node", NAME])?, pressure) == status).then_some(()));
        let so = cluster.until(&format!("{pressure} {what}"), is_so);
        space.described(so)?;
    }
    space.wait("pod/large", "jsonpath={.status.reason}=Evicted")?;
    let large = space.get(&["pod", "large"])?;
    ensure!(
        condition(&large, "DisruptionTarget"),
        "the evicted pod has no condition DisruptionTarget: {}",
        large["status"]
    );
    let after = ids(space)?;
    ensure!(before == after, "the small pod was replaced: before {before}, after {after}");
    // The node's taint, which keeps new pods away, is removed soon after.
    space.run("next", &pod(WAIT, json!({})))
}

fn ids(space: &Space<'_>) -> anyhow::Result<String> {
    let status = &space.get(&["pod", "small"])?["status"]["containerStatuses"][0];
    Ok(format!("{} {} {}", status["containerID"], status["restartCount"], status["state"]))
}

pub(super) fn programs_of_the_node_are_killed(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "kills")?;
    let probe = json!({"livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1}});
    space.deploy("web", 3, &pod(WAIT, probe))?;
    let containers = || -> anyhow::Result<Vec<String>> {
        let one = |pod: &Value| {
            let status = &pod["status"]["containerStatuses"][0];
            format!("{} {}", status["containerID"], status["restartCount"])
        };
        let mut all: Vec<String> = space.pods("web")?.iter().map(one).collect();
        all.sort();
        Ok(all)
    };
    let before = (containers()?, cluster.running("kills", "web-")?);
    ensure!(before.1.len() == 3, "the runtime runs the containers {:?}, expected 3", before.1);
    cluster.node.kill_kubelet()?;
    cluster.node.kill_runtime()?;
    cluster.node.start_runtime()?;
    cluster.node.start_kubelet()?;
    // A pod that starts shows that all programs work again.
    space.run("next", &pod(WAIT, json!({})))?;
    cluster.until_nodes_are_ready()?;
    space.until_prints("deployment/web", "echo runs", "runs\n")?;
    // The API server's status can be stale. The runtime's list is current.
    let after = (containers()?, cluster.running("kills", "web-")?);
    ensure!(before == after, "containers were replaced. Before:\n{before:?}\nafter:\n{after:?}");
    space.delete()
}

pub(super) fn nothing_is_left_of_deleted_pods(cluster: &Cluster) -> anyhow::Result<()> {
    leftovers::until_none(cluster)
}
