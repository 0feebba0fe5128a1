//! Cases for the start, restart and exit of containers.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::engines::kubelet::pods::{WAIT, container, run};
use crate::engines::kubelet::view::Pod;
use crate::engines::node::Node;

pub(super) fn pod_starts_and_leaves_nothing(node: &Node) -> anyhow::Result<()> {
    let pod = run(node, "plain", json!({"containers": [container("a", &format!("hostname; {WAIT}"), json!({}))]}))?;
    let status = pod.until_ready()?;
    ensure!(status.phase() == "Running", "phase {:?}, expected Running", status.phase());
    ensure!(status.ip().starts_with("10.88."), "pod address {:?}, expected 10.88.*", status.ip());
    let printed = pod.execute("a", "hostname -i")?;
    ensure!(printed.trim() == status.ip(), "address in the container: {printed:?}, expected {:?}", status.ip());
    ensure!(pod.log("a")? == "plain-node\n", "log {:?}, expected \"plain-node\\n\"", pod.log("a")?);
    pod.remove_entirely()
}

pub(super) fn missing_programs_are_start_errors(node: &Node) -> anyhow::Result<()> {
    let pod = run(node, "missing", json!({"containers": [container("a", "", json!({"command": ["/missing"]}))]}))?;
    let is_restarted = |pod: &Pod| pod.restarts("a") >= 1;
    let status = pod.until("the container is tried again", is_restarted)?;
    let end = &status.status("a")["lastState"]["terminated"];
    ensure!(
        end["reason"] == "StartError" && end["exitCode"] == 128,
        "lastState {end}, expected StartError with exit code 128"
    );
    ensure!(
        end["message"].as_str().is_some_and(|text| text.contains("/missing")),
        "lastState {end}: the message does not name /missing"
    );
    pod.remove()
}

pub(super) fn missing_images_are_reported(node: &Node) -> anyhow::Result<()> {
    let image = json!({"image": "registry.k8s.io/e2e-test-images/none:1"});
    let pod = run(node, "image", json!({"containers": [container("a", "", image)]}))?;
    let why = |pod: &Pod| pod.status("a")["state"]["waiting"]["reason"] == "ImagePullBackOff";
    let status = pod.until("the image is tried again", why)?;
    let message = &status.status("a")["state"]["waiting"]["message"];
    ensure!(
        message.as_str().is_some_and(|text| text.contains("none:1")),
        "the message {message} does not name the image none:1"
    );
    pod.remove()
}

pub(super) fn back_off_grows(node: &Node) -> anyhow::Result<()> {
    let pod = run(node, "crash", json!({"containers": [container("a", "echo $RANDOM; exit 5", json!({}))]}))?;
    let status = pod.until("the third start is delayed by 20 s", |pod| {
        let waiting = &pod.status("a")["state"]["waiting"];
        waiting["reason"] == "CrashLoopBackOff"
            && waiting["message"].as_str().is_some_and(|text| text.starts_with("back-off 20s"))
    })?;
    ensure!(status.restarts("a") == 2, "{} restarts, expected 2", status.restarts("a"));
    let end = &status.status("a")["lastState"]["terminated"];
    ensure!(end["exitCode"] == 5 && end["reason"] == "Error", "lastState {end}, expected Error with exit code 5");
    ensure!(pod.log("a")?.lines().count() == 1, "log of the last start: {:?}, expected one line", pod.log("a")?);
    pod.remove()
}

fn volume(path: &str) -> Value {
    json!({"volumeMounts": [{"name": "v", "mountPath": path}]})
}

pub(super) fn init_containers_run_in_order(node: &Node) -> anyhow::Result<()> {
    let step = |name: &str, script: &str| container(name, script, volume("/v"));
    let spec = json!({
        "initContainers": [step("i1", "sleep 1; echo 1 >>/v/l"), step("i2", "echo 2 >>/v/l")],
        "containers": [step("a", &format!("echo 3 >>/v/l; cat /v/l; {WAIT}"))],
        "volumes": [{"name": "v", "emptyDir": {}}],
    });
    let pod = run(node, "init", spec)?;
    let status = pod.until_ready()?;
    ensure!(pod.log("a")? == "1\n2\n3\n", "order of the steps {:?}, expected 1, 2, 3", pod.log("a")?);
    for name in ["i1", "i2"] {
        let end = &status.status(name)["state"]["terminated"];
        ensure!(end["reason"] == "Completed", "{name}: {}, expected reason Completed", status.status(name));
    }
    pod.remove()
}

pub(super) fn failing_init_is_repeated(node: &Node) -> anyhow::Result<()> {
    let spec = json!({
        "initContainers": [container("i", "exit 3", json!({}))],
        "containers": [container("a", WAIT, json!({}))],
    });
    let pod = run(node, "init-fails", spec)?;
    let status = pod.until("the init container is repeated", |pod| pod.restarts("i") >= 2)?;
    ensure!(
        status.status("a")["state"]["waiting"]["reason"] == "PodInitializing",
        "{}, expected reason PodInitializing",
        status.status("a")
    );
    ensure!(status.phase() == "Pending", "phase {:?}, expected Pending", status.phase());
    pod.remove()
}

pub(super) fn sidecars_start_first_and_end_last(node: &Node) -> anyhow::Result<()> {
    let logged = |name: &str| {
        format!("trap 'echo {name} ends >>/v/l; exit 0' TERM; echo {name} >>/v/l; while :; do sleep 0.2; done")
    };
    let path = node.path("root/paths/sidecar");
    let sidecar = json!({
        "restartPolicy": "Always", "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "startupProbe": {"exec": {"command": ["grep", "side", "/v/l"]}, "periodSeconds": 1},
    });
    let spec = json!({
        "initContainers": [container("s", &logged("side"), sidecar)],
        "containers": [container("a", &logged("main"), volume("/v"))],
        "volumes": [{"name": "v", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}],
    });
    let pod = run(node, "sidecar", spec)?;
    pod.until_ready()?;
    pod.remove()?;
    let order = std::fs::read_to_string(path.join("l"))?;
    ensure!(
        order == "side\nmain\nmain ends\nside ends\n",
        "order {order:?}, expected side, main, main ends, side ends"
    );
    Ok(())
}

pub(super) fn hooks_are_executed(node: &Node) -> anyhow::Result<()> {
    let path = node.path("root/paths/hooks");
    let hook = |line: &str| json!({"exec": {"command": ["sh", "-c", format!("echo {line} >>/v/l")]}});
    let fields = json!({
        "lifecycle": {"postStart": hook("post"), "preStop": hook("pre")},
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    });
    let script = "trap 'echo end >>/v/l; exit 0' TERM; while :; do sleep 0.2; done";
    let spec = json!({
        "containers": [container("a", script, fields)],
        "volumes": [{"name": "v", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}],
    });
    let pod = run(node, "hooks", spec)?;
    pod.until_ready()?;
    pod.remove()?;
    let order = std::fs::read_to_string(path.join("l"))?;
    ensure!(order == "post\npre\nend\n", "order {order:?}, expected post, pre, end");
    Ok(())
}

pub(super) fn messages_are_read(node: &Node) -> anyhow::Result<()> {
    let spec = json!({"restartPolicy": "Never", "containers": [
        container("file", "echo -n bye >/dev/termination-log; exit 1", json!({})),
        container("log", "echo last; exit 2", json!({"terminationMessagePolicy": "FallbackToLogsOnError"})),
        container("path", "echo -n mine >/tmp/end", json!({"terminationMessagePath": "/tmp/end"})),
    ]});
    let pod = run(node, "messages", spec)?;
    for (name, code, message) in [("file", 1, "bye"), ("log", 2, "last\n"), ("path", 0, "mine")] {
        let end = pod.until_terminated(name)?;
        ensure!(
            end["exitCode"] == code && end["message"] == message,
            "{name}: {end}, expected exit code {code} and message {message:?}"
        );
    }
    pod.until("the pod has failed", |pod| pod.phase() == "Failed")?;
    pod.remove()
}

pub(super) fn grace_period_ends_with_a_kill(node: &Node) -> anyhow::Result<()> {
    let path = node.path("root/paths/grace");
    let script = "trap 'date +%s >/v/term' TERM; while :; do date +%s >/v/new; mv /v/new /v/last; sleep 0.2; done";
    let spec = json!({
        "containers": [container("a", script, volume("/v"))],
        "volumes": [{"name": "v", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}],
        "terminationGracePeriodSeconds": 4,
    });
    let pod = run(node, "grace", spec)?;
    pod.until_ready()?;
    pod.remove()?;
    let time = |name: &str| -> anyhow::Result<u64> {
        std::fs::read_to_string(path.join(name))?
            .trim()
            .parse()
            .with_context(|| format!("the file {name} does not contain a time"))
    };
    let grace = Duration::from_secs(time("last")?.saturating_sub(time("term")?));
    ensure!(
        (3..=6).contains(&grace.as_secs()),
        "the program ran for {} s after SIGTERM, expected about 4 s",
        grace.as_secs()
    );
    Ok(())
}
