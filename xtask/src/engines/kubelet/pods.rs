//! Creates static pods, waits for their states, and removes them.

use std::fs;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::view::Pod;
use crate::engines::node::Node;

const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.29-2";
/// Shell script that runs until it is terminated.
pub(super) const WAIT: &str = "trap 'exit 0' TERM; while :; do sleep 0.2; done";

/// Returns a container that executes a shell script, with further fields.
pub(super) fn container(name: &str, script: &str, fields: Value) -> Value {
    let mut container = json!({"name": name, "image": IMAGE, "command": ["sh", "-c", script]});
    extend(&mut container, fields);
    container
}

fn extend(object: &mut Value, fields: Value) {
    if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
        object.extend(fields);
    }
}

/// Writes the manifest of a pod.
pub(super) fn run<'a>(node: &'a Node, name: &str, spec: Value) -> anyhow::Result<StaticPod<'a>> {
    run_annotated(node, name, &json!({}), spec)
}

/// Writes the manifest of a pod with annotations.
pub(super) fn run_annotated<'a>(
    node: &'a Node,
    name: &str,
    annotations: &Value,
    spec: Value,
) -> anyhow::Result<StaticPod<'a>> {
    let mut whole = json!({"terminationGracePeriodSeconds": 3});
    extend(&mut whole, spec);
    let metadata = json!({"name": name, "namespace": "default", "labels": {"case": name}, "annotations": annotations});
    let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": whole});
    // The kubelet ignores names that begin with a dot.
    let new = node.path(&format!("pods/.{name}"));
    fs::write(&new, manifest.to_string())?;
    fs::rename(new, node.path(&format!("pods/{name}.json")))?;
    Ok(StaticPod { node, name: name.to_owned() })
}

/// A pod whose manifest the kubelet reads. The manifest is removed when this value is dropped.
pub(super) struct StaticPod<'a> {
    node: &'a Node,
    name: String,
}

impl StaticPod<'_> {
    fn full_name(&self) -> String {
        format!("{}-node", self.name)
    }

    fn find(&self) -> anyhow::Result<Option<Pod>> {
        Ok(self.node.pods()?.into_iter().find(|pod| pod.name() == self.full_name()))
    }

    /// Waits until a condition of the pod is true.
    pub(super) fn until(&self, what: &str, mut is_true: impl FnMut(&Pod) -> bool) -> anyhow::Result<Pod> {
        let mut last = String::new();
        let poll = || {
            let found = self.find()?;
            last = found.as_ref().map(|pod| pod.0["status"].to_string()).unwrap_or_default();
            Ok(found.filter(&mut is_true))
        };
        let what = format!("{}: {what}", self.name);
        let found = self.node.until(&what, poll);
        found.with_context(|| format!("last status of the pod: {last}"))
    }

    /// Waits until the pod is ready.
    pub(super) fn until_ready(&self) -> anyhow::Result<Pod> {
        self.until("is ready", Pod::is_ready)
    }

    /// Waits until a container has terminated, and returns `state.terminated`.
    pub(super) fn until_terminated(&self, container: &str) -> anyhow::Result<Value> {
        let pod = self.until("a container has terminated", |pod| pod.state(container) == "terminated")?;
        Ok(pod.status(container)["state"]["terminated"].clone())
    }

    /// Returns the log of a container through the kubelet's API.
    pub(super) fn log(&self, container: &str) -> anyhow::Result<String> {
        self.node.get(&format!("/containerLogs/default/{}/{container}", self.full_name()))
    }

    /// Executes a shell script in a container through the kubelet's API, and returns its output.
    pub(super) fn execute(&self, container: &str, script: &str) -> anyhow::Result<String> {
        let query = ["sh", "-c", script].map(|word| format!("command={}", escape(word))).join("&");
        let url = self.url("exec", container, &format!("{query}&output=1"));
        self.node.output(&self.node.streams, ["exec", "websocket", "", &url, "stdout"])
    }

    /// Returns the URL of a stream to a container, or to the pod if `container` is empty.
    pub(super) fn url(&self, kind: &str, container: &str, query: &str) -> String {
        let slash = if container.is_empty() { "" } else { "/" };
        format!("https://127.0.0.1:10250/{kind}/default/{}{slash}{container}?{query}", self.full_name())
    }

    /// Returns the content of a file in the pod's cgroup, or in the cgroup of a container.
    pub(super) fn cgroup(
        &self,
        controller: &str,
        class: &str,
        container: Option<&str>,
        file: &str,
    ) -> anyhow::Result<String> {
        let pod = self.find()?.context("the kubelet does not list the pod")?;
        let mut directory = std::path::PathBuf::from("/sys/fs/cgroup");
        if !directory.join("cgroup.procs").exists() {
            directory.push(controller);
        }
        directory.push(format!("{}/kubepods/{class}pod{}", self.node.cgroup(), pod.uid()));
        if let Some(container) = container {
            let id = pod.status(container)["containerID"].as_str().unwrap_or_default();
            let id = id.trim_start_matches("executor://").to_owned();
            let is_its = |name: &str| !id.is_empty() && name.ends_with(&id);
            let mut entries = fs::read_dir(&directory)?.flatten();
            let entry = entries.find(|entry| entry.file_name().to_str().is_some_and(is_its));
            directory = entry.with_context(|| format!("the container {id} has no cgroup"))?.path();
        }
        Ok(fs::read_to_string(directory.join(file))?.trim().to_owned())
    }

    /// Removes the manifest, and waits until the pod, its cgroup and its directory are removed.
    pub(super) fn remove(self) -> anyhow::Result<()> {
        self.remove_with(&|_| String::new())
    }

    /// Removes the manifest, and waits until all resources of the pod are removed, including the sandbox and the log.
    /// The kubelet removes sandboxes and logs once a minute.
    pub(super) fn remove_entirely(self) -> anyhow::Result<()> {
        let name = self.full_name();
        let endpoint = format!("unix://{}", self.node.path("cri.sock").display());
        let crictl = self.node.crictl.display().to_string();
        self.remove_with(&|uid| {
            format!(
                "{crictl} --runtime-endpoint {endpoint} pods --quiet --name {name}; ls -d \
                 /var/log/pods/default_{name}_{uid} 2>/dev/null; "
            )
        })
    }

    /// Removes the manifest, and waits until no resources of the pod remain. `more` gets the pod's uid and returns a
    /// shell script that prints further leftovers of the pod.
    fn remove_with(self, more: &dyn Fn(&str) -> String) -> anyhow::Result<()> {
        let uid = self.find()?.map(|pod| pod.uid().to_owned()).unwrap_or_default();
        ensure!(!uid.is_empty(), "the kubelet does not list the pod {}", self.name);
        let name = self.full_name();
        fs::remove_file(self.node.path(&format!("pods/{}.json", self.name)))?;
        let is_gone = || Ok(self.find()?.is_none().then_some(()));
        self.node.until(&format!("{name} is removed"), is_gone)?;
        let leftovers = || {
            let script = format!(
                "{}ls -d /var/lib/kubelet/pods/{uid} 2>/dev/null; find /sys/fs/cgroup -path '*/{}/*pod{uid}*' \
                 -type d 2>/dev/null || true",
                more(&uid),
                self.node.cgroup()
            );
            let rest = self.node.output(std::path::Path::new("sh"), ["-c", &script])?;
            Ok(rest.trim().is_empty().then_some(()))
        };
        self.node.until(&format!("no resources of {name} remain"), leftovers)
    }
}

impl Drop for StaticPod<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.node.path(&format!("pods/{}.json", self.name)));
    }
}

/// Escapes a word for the query of a URL.
fn escape(word: &str) -> String {
    let byte = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    word.bytes().map(byte).collect()
}
