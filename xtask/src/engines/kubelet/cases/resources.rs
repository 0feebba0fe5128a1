//! Cases for limits, cgroups and statistics.

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::engines::kubelet::pods::{WAIT, container, run};
use crate::engines::node::Node;

pub(super) fn exceeded_memory_is_reported(node: &Node) -> anyhow::Result<()> {
    let limits = json!({"resources": {"limits": {"memory": "20Mi"}}});
    let containers = [container("a", "x=a; while :; do x=$x$x; done", limits)];
    let pod = run(node, "memory", json!({"containers": containers, "restartPolicy": "Never"}))?;
    let end = pod.until_terminated("a")?;
    ensure!(
        end["reason"] == "OOMKilled" && end["exitCode"] == 137,
        "the container exited with {end}, expected OOMKilled with exit code 137"
    );
    pod.remove()
}

pub(super) fn cgroups_follow_the_class(node: &Node) -> anyhow::Result<()> {
    let with = |resources: Value| json!({"containers": [container("a", WAIT, json!({"resources": resources}))]});
    let most = json!({"limits": {"cpu": "200m", "memory": "32Mi"}});
    let some = json!({"requests": {"cpu": "100m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}});
    let is_v2 = std::path::Path::new("/sys/fs/cgroup/cgroup.procs").exists();
    let [memory, cpu] = if is_v2 { ["memory.max", "cpu.max"] } else { ["memory.limit_in_bytes", "cpu.cfs_quota_us"] };
    for (name, class, directory, resources, bytes) in [
        ("guaranteed", "Guaranteed", "", most, Some("33554432")),
        ("burstable", "Burstable", "burstable/", some, Some("67108864")),
        ("besteffort", "BestEffort", "besteffort/", json!({}), None),
    ] {
        let pod = run(node, name, with(resources))?;
        let status = pod.until_ready()?;
        ensure!(
            status.0["status"]["qosClass"] == class,
            "{name}: qosClass {}, expected {class}",
            status.0["status"]["qosClass"]
        );
        let files =
            [pod.cgroup("memory", directory, None, memory)?, pod.cgroup("memory", directory, Some("a"), memory)?];
        for text in files {
            let is_limited = bytes.map_or(!text.starts_with("33554432"), |bytes| text == bytes);
            ensure!(is_limited, "{name}: {memory} {text}, expected {}", bytes.unwrap_or("no limit"));
        }
        if class == "Guaranteed" {
            let quota = pod.cgroup("cpu", directory, Some("a"), cpu)?;
            ensure!(quota.starts_with("20000"), "{name}: {cpu} {quota}, expected 20000");
            let limits = &status.status("a")["resources"]["limits"];
            ensure!(
                limits["memory"] == "32Mi" && limits["cpu"] == "200m",
                "{name}: limits in the status {limits}, expected 200m and 32Mi"
            );
        }
        pod.remove()?;
    }
    Ok(())
}

pub(super) fn statistics_are_served(node: &Node) -> anyhow::Result<()> {
    let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo x >/x; echo y; exec sleep 1000";
    let pod = run(node, "statistics", json!({"containers": [container("a", script, json!({}))]}))?;
    pod.until_ready()?;
    let summary = || -> anyhow::Result<Option<()>> {
        let summary: Value = serde_json::from_str(&node.get("/stats/summary")?)?;
        let image = &summary["node"]["runtime"]["imageFs"]["usedBytes"];
        ensure!(image.as_u64().is_some_and(|bytes| bytes > 0), "imageFs.usedBytes is {image}, expected more than 0");
        let pods = summary["pods"].as_array().context("the summary has no list of pods")?;
        let pod = pods.iter().find(|pod| pod["podRef"]["name"] == "statistics-node");
        let Some(container) = pod.and_then(|pod| pod["containers"][0].as_object()) else { return Ok(None) };
        let paths = ["/cpu/usageCoreNanoSeconds", "/memory/workingSetBytes", "/rootfs/usedBytes", "/logs/usedBytes"];
        let container = Value::Object(container.clone());
        let is_there = |path: &str| container.pointer(path).and_then(Value::as_u64).is_some_and(|number| number > 0);
        Ok(paths.into_iter().all(is_there).then_some(()))
    };
    node.until("/stats/summary has the container", summary)?;
    let metric = "container_cpu_usage_seconds_total{container=\"a\",namespace=\"default\",pod=\"statistics-node\"}";
    let resource = || Ok(node.get("/metrics/resource")?.contains(metric).then_some(()));
    node.until("/metrics/resource has the container", resource)?;
    pod.remove()
}
