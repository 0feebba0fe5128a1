//! Cases that run alone: the programs are killed, or the disk is full.

use anyhow::ensure;
use serde_json::json;

use crate::engines::kubelet::pods::{WAIT, container, run};
use crate::engines::node::Node;

/// Parts of the kubelet's error messages that occur with every runtime: about features that this host does not have,
/// settings that need an API server, and errors that the cases cause.
const KNOWN: [&str; 25] = [
    // Features that this host does not have.
    "Failed to set rlimit on max file handles",
    "Failed to ensure process in container with oom score",
    // The first start, and a kubelet without an API server.
    "Flexvolume plugin directory",
    "kubeclient not set",
    "running in standalone mode",
    "container runtime status check may not have completed yet",
    "pleg has yet to be successful",
    "Stats initialization may not have completed yet",
    "checkpoint is not found",
    "no imagefs label for configured runtime",
    "failed to check if node is newer",
    // Errors that the cases cause.
    "CrashLoopBackOff",
    "ImagePullBackOff",
    "exec /missing: No such file or directory",
    "e2e-test-images/none:1",
    "{Addr: \"10.88.", // the control of the gRPC probe
    "Error proxying data from client to backend",
    "use of closed network connection",
    "context canceled",
    "container not running",
    "Probe errored",
    // The kubelet lists the directory of static pods between the removal of a file and its event.
    "doesn't exist in cache",
    // The kubelet has just removed the container.
    "rpc error: code = NotFound desc = there is no container with the id",
    // cAdvisor watches the cgroups of executed processes, which end soon.
    "inotify_add_watch",
    "/exec-",
];

/// The kubelet's log contains only known errors and warnings.
pub(super) fn log_has_known_errors(node: &Node) -> anyhow::Result<()> {
    let log = node.log()?;
    let is_problem = |line: &&str| {
        let mut bytes = line.bytes();
        matches!(bytes.next(), Some(b'E' | b'F' | b'W')) && bytes.take(4).all(|byte| byte.is_ascii_digit())
    };
    let problems = log.lines().filter(is_problem);
    let unknown: Vec<&str> = problems.filter(|line| !KNOWN.iter().any(|known| line.contains(known))).collect();
    ensure!(unknown.is_empty(), "{} unexpected errors in the kubelet's log:\n{}", unknown.len(), unknown.join("\n"));
    Ok(())
}

fn pods(node: &Node, mut disturb: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let spec = json!({
        "containers": [container("a", WAIT, json!({"livenessProbe": probe})), container("b", WAIT, json!({}))],
    });
    let pod = run(node, "stable", spec)?;
    let before = pod.until_ready()?.ids();
    disturb()?;
    let list = || Ok(node.crictl(&["pods", "--quiet"]).ok());
    node.until("the runtime lists its pods", list)?;
    let after = pod.until_ready()?.ids();
    ensure!(before == after, "containers were replaced. Before:\n{before}after:\n{after}");
    // executord serves calls before its launcher is connected.
    let execute = || Ok(pod.execute("a", "echo runs").is_ok_and(|printed| printed == "runs\n").then_some(()));
    node.until("a command can be executed", execute)?;
    pod.remove()
}

pub(super) fn kubelet_finds_its_pods(node: &Node) -> anyhow::Result<()> {
    pods(node, || {
        node.kill_kubelet()?;
        node.start_alone()
    })
}

pub(super) fn executor_cri_is_killed(node: &Node) -> anyhow::Result<()> {
    pods(node, || {
        node.kill_cri()?;
        node.start_cri()
    })
}

pub(super) fn executord_is_killed(node: &Node) -> anyhow::Result<()> {
    pods(node, || {
        node.kill_executord()?;
        node.start_executord()
    })
}

/// On a full disk the kubelet removes unused images, but evicts no static pod.
pub(super) fn full_disk_collects_images(node: &Node) -> anyhow::Result<()> {
    let unused = "registry.k8s.io/e2e-test-images/nonewprivs:1.3";
    node.crictl(&["pull", unused])?;
    let fields = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let fill = "fallocate -l $(($(df -k /v | awk 'END {print $4}') - 20480))k /v/x";
    let spec = json!({
        "containers": [container("a", &format!("{fill}; {WAIT}"), fields)],
        "volumes": [{"name": "v", "emptyDir": {}}],
    });
    let pod = run(node, "disk", spec)?;
    let before = pod.until_ready()?.ids();
    let is_removed = || Ok((!node.crictl(&["images", "--output", "json"])?.contains(unused)).then_some(()));
    node.until("the unused image is removed", is_removed)?;
    let after = pod.until_ready()?.ids();
    ensure!(before == after, "containers were replaced. Before:\n{before}after:\n{after}");
    pod.remove()
}
