//! Cases that run alone: the node is cordoned, drained or full, or its programs end.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};

use crate::engines::cluster::kubectl::{Cluster, condition};
use crate::engines::cluster::space::{STAY, Space, WAIT, extend, pod};
use crate::engines::node::NAME;

/// Places with the uids of pods, and scripts that print the uids.
const PLACES: [(&str, &str); 3] = [
    ("the kubelet's directories", "ls /var/lib/kubelet/pods"),
    ("the logs", "ls /var/log/pods | sed 's/.*_//'"),
    ("the cgroups", "find /sys/fs/cgroup -path '*/cluster-test/*' -name 'pod*' -type d | sed 's/.*pod//'"),
];

pub(super) fn drained_node_runs_pods_after_uncordon(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "drain")?;
    space.deploy("web", 3, &pod(WAIT, json!({})))?;
    let before = names(&space.pods("web")?);
    let budget = json!({"minAvailable": 3, "selector": {"matchLabels": {"app": "web"}}});
    space.apply("policy/v1", "PodDisruptionBudget", "web", json!({"spec": budget}))?;
    let drain =
        ["drain", NAME, "--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector", "app=web", "--timeout"];
    // The budget forbids it.
    let refused = cluster.kubectl(&[&drain[..], &["3s"]].concat());
    let Err(error) = refused else { bail!("the node was drained against the budget") };
    ensure!(error.to_string().contains("disruption budget"), "the drain failed for another reason: {error:#}");
    let kept = space.pods("web")?;
    let is_ending = |pod: &Value| !pod["metadata"]["deletionTimestamp"].is_null();
    ensure!(before.len() == 3 && names(&kept) == before && !kept.iter().any(is_ending), "{before:?} and {kept:?}");
    space.kubectl(&["delete", "poddisruptionbudget", "web"])?;
    cluster.kubectl(&[&drain[..], &["120s"]].concat())?;
    let is_pending = |pod: &Value| pod["status"]["phase"] == "Pending" && pod["spec"]["nodeName"].is_null();
    let are_replaced = || {
        let pods = space.pods("web")?;
        ensure!(pods.iter().all(is_pending), "pods run on the drained node");
        Ok((pods.len() == 3).then_some(()))
    };
    cluster.until("three pods wait for a node", are_replaced)?;
    cluster.kubectl(&["uncordon", NAME])?;
    space.roll_out("deployment/web")?;
    let after = names(&space.pods("web")?);
    ensure!(after.iter().all(|name| !before.contains(name)), "{before:?} and {after:?}");
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
    // The pods may use 2 GiB. The kubelet looks every ten seconds.
    let script = format!(
        "i=0; while [ $i -lt 2100 ]; do dd if=/dev/zero of=/v/$i bs=1M count=20; i=$((i+20)); sleep 0.5; done; {STAY}"
    );
    let mut spec = pod(&script, json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}));
    extend(&mut spec, json!({"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]}));
    space.apply("v1", "Pod", "large", json!({"spec": spec}))?;
    evicted(cluster, &space, "MemoryPressure")?;
    space.delete()
}

/// Waits until the pressure has begun and ended, because the pod `large` is evicted. The pod `small` runs on.
fn evicted(cluster: &Cluster, space: &Space<'_>, pressure: &str) -> anyhow::Result<()> {
    let before = ids(space)?;
    for (status, what) in [(true, "begins"), (false, "ends")] {
        let is_so = || Ok((condition(&cluster.get(&["node", NAME])?, pressure) == status).then_some(()));
        let so = cluster.until(&format!("{pressure} {what}"), is_so);
        space.described(so)?;
    }
    space.wait("pod/large", "jsonpath={.status.reason}=Evicted")?;
    let large = space.get(&["pod", "large"])?;
    ensure!(condition(&large, "DisruptionTarget"), "the status is {}", large["status"]);
    let after = ids(space)?;
    ensure!(before == after, "the other pod was {before} and is {after}");
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
    let before = (containers()?, running(cluster, "kills", "web-")?);
    ensure!(before.1.len() == 3, "the runtime runs the containers {:?}", before.1);
    cluster.node.kill_kubelet()?;
    cluster.node.kill_runtime()?;
    cluster.node.start_runtime()?;
    cluster.node.start_kubelet()?;
    // A pod that starts shows that all of them work again.
    space.run("next", &pod(WAIT, json!({})))?;
    cluster.until_node_is_ready()?;
    space.until_prints("deployment/web", "echo runs", "runs\n")?;
    // The API server's status can be stale. The runtime's list is not.
    let after = (containers()?, running(cluster, "kills", "web-")?);
    ensure!(before == after, "the containers were\n{before:?}and are\n{after:?}");
    space.delete()
}

/// Returns the ids and attempts of the runtime's running containers, for the pods of a namespace with a prefix.
fn running(cluster: &Cluster, namespace: &str, prefix: &str) -> anyhow::Result<Vec<String>> {
    let list: Value = serde_json::from_str(&cluster.node.crictl(&["ps", "--output", "json"])?)?;
    let containers = list["containers"].as_array().context("a list")?.iter().filter(|container| {
        let labels = &container["labels"];
        let name = labels["io.kubernetes.pod.name"].as_str().unwrap_or_default();
        labels["io.kubernetes.pod.namespace"] == namespace && name.starts_with(prefix)
    });
    let one = |container: &Value| format!("{} {}", container["id"], container["metadata"]["attempt"]);
    let mut all: Vec<String> = containers.map(one).collect();
    all.sort();
    Ok(all)
}

/// Only sandboxes, directories, logs and cgroups of pods that the API server has are left. The control: each place has
/// the running pods of the system.
pub(super) fn nothing_is_left_of_deleted_pods(cluster: &Cluster) -> anyhow::Result<()> {
    let rest = || -> anyhow::Result<Vec<String>> {
        let pods = cluster.get(&["pods", "--all-namespaces"])?;
        let pods = pods["items"].as_array().context("a list")?;
        let uid = |pod: &Value| pod["metadata"]["uid"].as_str().map(str::to_owned);
        let is_of_system = |pod: &&Value| {
            let metadata = &pod["metadata"];
            let is_running = pod["status"]["phase"] == "Running" && metadata["deletionTimestamp"].is_null();
            metadata["namespace"] == "kube-system" && is_running
        };
        let uids: Vec<String> = pods.iter().filter_map(uid).collect();
        let system: Vec<String> = pods.iter().filter(is_of_system).filter_map(uid).collect();
        ensure!(!system.is_empty(), "no pod of the system runs");
        let sandboxes: Value = serde_json::from_str(&cluster.node.crictl(&["pods", "--output", "json"])?)?;
        let sandboxes = sandboxes["items"].as_array().context("a list")?;
        let mut found: Vec<(&str, Vec<String>)> = vec![("the sandboxes", sandboxes.iter().filter_map(uid).collect())];
        for (place, script) in PLACES {
            let printed = cluster.node.output(Path::new("sh"), ["-c", script])?;
            found.push((place, printed.lines().map(str::to_owned).collect()));
        }
        for (place, present) in &found {
            let missing = system.iter().find(|uid| !present.contains(uid));
            ensure!(missing.is_none(), "{place} lack the running pod {missing:?}: {present:?}");
        }
        let found = found.into_iter().flat_map(|(_, present)| present);
        Ok(found.filter(|uid| !uids.contains(uid)).collect())
    };
    let mut last = Vec::new();
    let is_clean = || {
        last = rest()?;
        Ok(last.is_empty().then_some(()))
    };
    let done = cluster.until("nothing is left of deleted pods", is_clean);
    done.with_context(|| format!("of these pods something is left: {last:?}"))
}
