//! Cases for probes.

use anyhow::ensure;
use serde_json::json;

use crate::engines::kubelet::pods::{WAIT, container, run};
use crate::engines::node::Node;

pub(super) fn readiness_follows_the_probe(node: &Node) -> anyhow::Result<()> {
    let fields = json!({
        "startupProbe": {"exec": {"command": ["cat", "/w/index.html"]}, "periodSeconds": 1},
        "readinessProbe": {"httpGet": {"path": "/index.html", "port": 8080}, "periodSeconds": 1, "failureThreshold": 1},
        "livenessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 1},
    });
    let script = "mkdir /w; sleep 1; echo ok >/w/index.html; exec httpd -f -p 8080 -h /w";
    let pod = run(node, "readiness", json!({"containers": [container("a", script, fields)]}))?;
    pod.until_ready()?;
    pod.execute("a", "mv /w/index.html /w/x")?;
    pod.until("is not ready", |pod| !pod.is_ready())?;
    pod.execute("a", "mv /w/x /w/index.html")?;
    let status = pod.until_ready()?;
    ensure!(status.restarts("a") == 0, "{} restarts, expected 0", status.restarts("a"));
    pod.remove()
}

pub(super) fn liveness_restarts(node: &Node) -> anyhow::Result<()> {
    let probe = json!({"exec": {"command": ["cat", "/ok"]}, "periodSeconds": 1, "failureThreshold": 1});
    let script = format!("touch /ok; {WAIT}");
    let fields = json!({"livenessProbe": probe});
    let pod = run(node, "liveness", json!({"containers": [container("a", &script, fields)]}))?;
    pod.until_ready()?;
    pod.execute("a", "rm /ok")?;
    let status = pod.until("the container runs again", |pod| pod.restarts("a") == 1 && pod.is_ready())?;
    let end = &status.status("a")["lastState"]["terminated"];
    ensure!(
        end["exitCode"] == 0 && end["reason"] == "Completed",
        "lastState {end}, expected Completed with exit code 0"
    );
    pod.remove()
}

pub(super) fn startup_restarts(node: &Node) -> anyhow::Result<()> {
    let probe = json!({"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 2});
    let pod = run(node, "startup", json!({"containers": [container("a", WAIT, json!({"startupProbe": probe}))]}))?;
    let status = pod.until("the container is restarted", |pod| pod.restarts("a") >= 1)?;
    ensure!(!status.is_ready(), "the pod is ready although its startup probe fails");
    pod.remove()
}

pub(super) fn grpc_is_probed(node: &Node) -> anyhow::Result<()> {
    let fields = json!({
        "image": "registry.k8s.io/e2e-test-images/health:1", "command": ["/health", "9000"],
        "readinessProbe": {"grpc": {"port": 9000}, "periodSeconds": 1},
        "livenessProbe": {"grpc": {"port": 9000}, "periodSeconds": 1},
    });
    let other = json!({"readinessProbe": {"grpc": {"port": 9001}, "periodSeconds": 1}});
    let spec = json!({"containers": [container("a", "", fields), container("control", WAIT, other)]});
    let pod = run(node, "grpc", spec)?;
    let status = pod.until("a container is ready", |pod| pod.status("a")["ready"] == true)?;
    ensure!(
        status.status("control")["ready"] == false,
        "a container is ready although no server listens on the probed port"
    );
    ensure!(status.restarts("a") == 0, "{} restarts, expected 0", status.restarts("a"));
    pod.remove()
}
