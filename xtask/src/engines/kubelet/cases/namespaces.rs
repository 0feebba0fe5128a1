//! Cases for namespaces and security contexts.

use anyhow::ensure;
use serde_json::json;

use crate::engines::kubelet::pods::{WAIT, container, run};
use crate::engines::node::Node;

pub(super) fn security_context_is_applied(node: &Node) -> anyhow::Result<()> {
    let fields = json!({
        "securityContext": {
            "runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": true, "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    });
    let spec = json!({
        "containers": [container("a", WAIT, fields)],
        "securityContext": {"fsGroup": 2000, "supplementalGroups": [3000]},
        "volumes": [{"name": "v", "emptyDir": {}}],
    });
    let pod = run(node, "security", spec)?;
    pod.until_ready()?;
    let script = "id -u; id -g; id -G; grep -e CapBnd -e NoNewPrivs /proc/self/status | tr -s '\\t' ' '; touch /x 2>&1; \
                  touch /v/x; stat -c %g /v/x";
    let printed = pod.execute("a", script)?;
    let expected = "1000\n1000\n1000 2000 3000 50000\nCapBnd: 0000000000000000\nNoNewPrivs: 1\n\
                    touch: /x: Read-only file system\n2000\n";
    ensure!(printed == expected, "in the container: {printed:?}, expected {expected:?}");
    pod.remove()
}

pub(super) fn seccomp_is_the_default(node: &Node) -> anyhow::Result<()> {
    let unconfined = json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}});
    let spec = json!({"containers": [container("a", WAIT, json!({})), container("b", WAIT, unconfined)]});
    let pod = run(node, "seccomp", spec)?;
    pod.until_ready()?;
    for (name, expected) in [("a", "Seccomp:\t2\n"), ("b", "Seccomp:\t0\n")] {
        let printed = pod.execute(name, "grep Seccomp: /proc/self/status")?;
        ensure!(printed == expected, "{name}: {printed:?}, expected {expected:?}");
    }
    pod.remove()
}

pub(super) fn host_namespaces_are_shared(node: &Node) -> anyhow::Result<()> {
    let fields = json!({"securityContext": {"privileged": true}});
    let spec = json!({
        "containers": [container("a", WAIT, fields)], "hostNetwork": true, "hostPID": true, "hostIPC": true,
    });
    let pod = run(node, "host", spec)?;
    pod.until_ready()?;
    let links = "for name in net pid ipc; do readlink /proc/1/ns/$name; readlink /proc/self/ns/$name; done | uniq -c | \
                 grep -c '^ *2 '; hostname; grep -c ' /sys sysfs rw' /proc/mounts; \
                 cat /proc/1/status /proc/self/status | grep CapEff | uniq | wc -l; true";
    let printed = pod.execute("a", links)?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    let expected = format!("3\n{host}1\n1\n");
    ensure!(printed == expected, "in the container: {printed:?}, expected {expected:?}");
    pod.remove()
}

pub(super) fn users_are_mapped(node: &Node) -> anyhow::Result<()> {
    let fields = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "d", "mountPath": "/d"}]});
    let name = json!({"path": "name", "fieldRef": {"fieldPath": "metadata.name"}});
    let spec = json!({
        "containers": [container("a", WAIT, fields)], "hostUsers": false,
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "d", "downwardAPI": {"items": [name]}}],
    });
    let pod = run(node, "users", spec)?;
    pod.until_ready()?;
    let printed = pod.execute("a", "touch /v/x; stat -c %u /v/x; cat /d/name; echo; cat /proc/self/uid_map")?;
    let words: Vec<&str> = printed.split_whitespace().collect();
    let [owner, name, inside, outside, length] = words[..] else {
        anyhow::bail!("in the container: {printed:?}, expected five words")
    };
    ensure!(
        (owner, name, inside, length) == ("0", "users-node", "0", "65536"),
        "in the container: {printed:?}, expected owner 0, users-node and a map of 65536 ids from 0"
    );
    let outside: u32 = outside.parse()?;
    ensure!(
        (2_013_265_920..2_020_474_880).contains(&outside),
        "first user id on the host: {outside}, expected 2013265920 to 2020474879"
    );
    pod.remove()
}

pub(super) fn processes_are_shared(node: &Node) -> anyhow::Result<()> {
    let spec = json!({
        "containers": [container("a", "exec sleep 1111", json!({})), container("b", WAIT, json!({}))],
        "shareProcessNamespace": true,
    });
    let pod = run(node, "shared", spec)?;
    pod.until_ready()?;
    ensure!(
        pod.execute("b", "ps | grep -c '[s]leep 1111'")? == "1\n",
        "container b does not see the process of container a"
    );
    pod.remove()
}
