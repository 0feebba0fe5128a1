//! Cases for secrets by reference.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde_json::json;

use crate::engines::kubelet::pods::{WAIT, container, run_annotated};
use crate::engines::node::{Node, SECRETS};

const FIRST: &str = "the-first-value-of-a-secret";
const SECOND: &str = "the-second-value-of-a-secret";
const ORDINARY: &str = "an-ordinary-variable";

/// CRI rules C51 and C54: only the container has the values. The controls: an ordinary variable is in the log, in the
/// kubelet's response and in a file of the host.
pub(super) fn references_reach_the_container_alone(node: &Node) -> anyhow::Result<()> {
    put(node, "password", FIRST)?;
    let entries = "- {file: /run/db/password, provider: shelf, path: db/password, mode: 0440}\n\
                   - {env: PASSWORD, provider: shelf, path: db/password}\n";
    let annotations = json!({"secrets.executor.v1/a": entries});
    let script = format!("cat /run/db/password; echo; echo $PASSWORD $ORDINARY; {WAIT}");
    let fields = json!({"env": [{"name": "ORDINARY", "value": ORDINARY}]});
    let containers = json!({"containers": [container("a", &script, fields), container("b", WAIT, json!({}))]});
    let pod = run_annotated(node, "secrets", &annotations, containers)?;
    let status = pod.until_ready()?;
    let read = "cat /run/db/password; echo $PASSWORD; stat -L -c %a /run/db/password";
    let printed = pod.execute("a", read)?;
    ensure!(
        printed == format!("{FIRST}{FIRST}\n440\n"),
        "in the container: {printed:?}, expected the value twice and mode 440"
    );
    ensure!(
        pod.execute("b", "ls /run/db 2>/dev/null; echo $PASSWORD")? == "\n",
        "container b has a secret of container a"
    );
    put(node, "password", SECOND)?;
    node.until("the new value is in the container", || {
        Ok((pod.execute("a", "cat /run/db/password")? == SECOND).then_some(()))
    })?;

    let log = pod.log("a")?;
    ensure!(log.contains("[REDACTED:") && log.contains(ORDINARY), "log {log:?}, expected [REDACTED: and {ORDINARY}");
    let id = status.status("a")["containerID"]
        .as_str()
        .context("the container has no id")?
        .trim_start_matches("executor://")
        .to_owned();
    let sandbox = node.crictl(&["pods", "--quiet", "--name", "secrets-node"])?;
    let seen = [
        ("the log", log),
        ("the kubelet's list", node.http("GET", "http://127.0.0.1:10255/pods")?),
        ("crictl inspect", node.crictl(&["inspect", &id])?),
        ("crictl inspectp", node.crictl(&["inspectp", sandbox.trim()])?),
    ];
    ensure!(seen[1].1.contains(ORDINARY), "control failed: the kubelet's list does not contain {ORDINARY}");
    for (what, text) in &seen {
        ensure!(![FIRST, SECOND].iter().any(|value| text.contains(value)), "{what} contains the secret: {text}");
    }
    let directories = ["/var/lib/kubelet", "/var/log/pods"].map(Path::new).map(Path::to_owned);
    let ours = ["cri", "executor", "disk/executor", "executord.log", "executor-cri.log", "kubelet.log"];
    let places = directories.into_iter().chain(ours.map(|name| node.path(name)));
    let places: Vec<String> = places.map(|path| path.display().to_string()).collect();
    let search = |pattern: &str| {
        let script = format!("for place; do [ -e \"$place\" ] || exit 1; done; grep -rlE '{pattern}' \"$@\" || true");
        let arguments = ["-c", &script, "sh"].into_iter().chain(places.iter().map(String::as_str));
        node.output(Path::new("sh"), arguments)
    };
    ensure!(search(ORDINARY)?.contains("/var/log/pods"), "control failed: no log file contains {ORDINARY}");
    let found = search(&format!("{FIRST}|{SECOND}"))?;
    ensure!(found.is_empty(), "the secret is in {found}");
    pod.remove()
}

/// CRI rules C6 and C8: the kubelet reports the file, the reference and the reason, and retries.
pub(super) fn missing_secret_is_named(node: &Node) -> anyhow::Result<()> {
    let annotations = json!({"secrets.executor.v1/a": "[{file: /run/late, provider: shelf, path: db/late}]"});
    let pod = run_annotated(node, "late", &annotations, json!({"containers": [container("a", WAIT, json!({}))]}))?;
    let failed = pod.until("is waiting for the secret", |pod| {
        pod.status("a")["state"]["waiting"]["reason"] == "CreateContainerError"
    })?;
    let message = failed.status("a")["state"]["waiting"]["message"].as_str().unwrap_or_default();
    for part in ["config.annotations[secrets.executor.v1/a][0]", "shelf:db/late", "/run/late", "does not exist"] {
        ensure!(message.contains(part), "the message {message:?} does not contain {part:?}");
    }
    put(node, "late", "a value")?;
    pod.until_ready()?;
    ensure!(pod.execute("a", "cat /run/late")? == "a value", "/run/late in the container does not contain the secret");
    pod.remove()
}

/// Sets the value of a secret.
fn put(node: &Node, name: &str, value: &str) -> anyhow::Result<()> {
    let directory = node.path(SECRETS).join("db");
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("new"), value)?;
    Ok(fs::rename(directory.join("new"), directory.join(name))?)
}
