//! Cases for volumes.

use anyhow::ensure;
use serde_json::json;

use crate::engines::kubelet::pods::{WAIT, container, run};
use crate::engines::node::Node;

pub(super) fn volumes_are_mounted(node: &Node) -> anyhow::Result<()> {
    let path = node.path("root/paths/volumes");
    let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path});
    let fields = json!({
        "volumeMounts": [
            mount("disk", "/disk"), mount("memory", "/memory"), mount("host", "/host"), mount("pod", "/pod"),
            {"name": "disk", "mountPath": "/part", "subPath": "x/y"},
        ],
        "env": [
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
        ],
        "resources": {"limits": {"memory": "64Mi"}},
    });
    let script = format!("echo a >/disk/a; echo b >/host/b; echo c >/part/c; {WAIT}");
    let second = json!({"volumeMounts": [mount("disk", "/disk")]});
    let spec = json!({
        "containers": [container("a", &script, fields), container("b", WAIT, second)],
        "volumes": [
            {"name": "disk", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}},
            {"name": "host", "hostPath": {"path": path, "type": "DirectoryOrCreate"}},
            {"name": "pod", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        ],
    });
    let pod = run(node, "volumes", spec)?;
    let status = pod.until_ready()?;
    let read =
        "cat /pod/name; echo; echo $IP $MEMORY; cat /disk/x/y/c; grep -c '/memory tmpfs.*size=4096k' /proc/mounts";
    let printed = pod.execute("a", read)?;
    let expected = format!("volumes-node\n{} 67108864\nc\n1\n", status.ip());
    ensure!(printed == expected, "in the container: {printed:?}, expected {expected:?}");
    ensure!(pod.execute("b", "cat /disk/a")? == "a\n", "container b does not see the file /disk/a of container a");
    ensure!(std::fs::read_to_string(path.join("b"))? == "b\n", "the file b of the hostPath volume is not on the host");
    pod.remove()
}
