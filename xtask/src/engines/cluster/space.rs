//! A Kubernetes namespace for a case, and its objects.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::kubectl::{Cluster, output};

pub(super) const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.29-2";
/// Shell script that runs until it is terminated.
pub(super) const WAIT: &str = "trap 'exit 0' TERM; while :; do sleep 0.2; done";
/// Shell script that runs until SIGKILL. If the containers of an evicted pod exit with 0, the kubelet reports the pod
/// as Succeeded, without a reason.
pub(super) const STAY: &str = "exec sleep 100000";
/// Shell script that serves the pod's host name on port 8080.
pub(super) const SERVE: &str = "mkdir /w; hostname >/w/index.html; exec httpd -f -p 8080 -h /w";

/// A namespace. Dropping this value deletes the namespace in the background.
pub(super) struct Space<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) name: &'static str,
}

/// Returns the specification of a pod with one container `a`, which executes a shell script.
pub(super) fn pod(script: &str, container: Value) -> Value {
    let mut whole = json!({"name": "a", "image": IMAGE, "command": ["sh", "-c", script]});
    extend(&mut whole, container);
    json!({"containers": [whole], "terminationGracePeriodSeconds": 3})
}

/// Adds the constraint that the pods with the label `app` are spread over the nodes.
pub(super) fn spread(spec: &mut Value, app: &str) {
    let constraint = json!({
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": app}},
    });
    extend(spec, json!({"topologySpreadConstraints": [constraint]}));
}

/// Adds fields to an object.
pub(super) fn extend(object: &mut Value, fields: Value) {
    if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
        object.extend(fields);
    }
}

impl<'a> Space<'a> {
    /// Creates a namespace, and waits until pods can be created in it.
    pub(super) fn create(cluster: &'a Cluster, name: &'static str) -> anyhow::Result<Self> {
        cluster.kubectl(&["create", "namespace", name])?;
        let space = Self { cluster, name };
        let has_account = || Ok(space.kubectl(&["get", "serviceaccount", "default"]).ok());
        cluster.until("the namespace has a service account", has_account)?;
        Ok(space)
    }

    /// Deletes the namespace, and waits until the deletion is complete.
    pub(super) fn delete(self) -> anyhow::Result<()> {
        self.cluster.kubectl(&["delete", "namespace", self.name, "--timeout", "180s"]).map(drop)
    }

    /// Runs kubectl in the namespace, and returns its standard output.
    pub(super) fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.input("", arguments)
    }

    /// Runs kubectl in the namespace with `input` as standard input, and returns its standard output.
    pub(super) fn input(&self, input: &str, arguments: &[&str]) -> anyhow::Result<String> {
        output(self.command().args(arguments), input)
    }

    /// Returns a command that runs kubectl in the namespace.
    pub(super) fn command(&self) -> std::process::Command {
        let mut command = self.cluster.command();
        command.args(["--namespace", self.name]);
        command
    }

    /// Creates or changes an object.
    pub(super) fn apply(&self, version: &str, kind: &str, name: &str, fields: Value) -> anyhow::Result<()> {
        let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}});
        extend(&mut object, fields);
        self.input(&object.to_string(), &["apply", "--filename", "-"]).map(drop)
    }

    /// Creates a pod, and waits until it is ready.
    pub(super) fn run(&self, name: &str, spec: &Value) -> anyhow::Result<()> {
        self.apply("v1", "Pod", name, json!({"metadata": {"name": name, "labels": {"app": name}}, "spec": spec}))?;
        self.wait(&format!("pod/{name}"), "condition=Ready")
    }

    /// Creates a Deployment whose pods have the label `app`.
    pub(super) fn deploy(&self, name: &str, replicas: u32, pod: &Value) -> anyhow::Result<()> {
        let labels = json!({"app": name});
        let template = json!({"metadata": {"labels": labels}, "spec": pod});
        let spec = json!({"replicas": replicas, "selector": {"matchLabels": labels}, "template": template});
        self.apply("apps/v1", "Deployment", name, json!({"spec": spec}))?;
        self.roll_out(&format!("deployment/{name}"))
    }

    /// Waits until a rollout is complete.
    pub(super) fn roll_out(&self, object: &str) -> anyhow::Result<()> {
        self.described(self.kubectl(&["rollout", "status", object, "--timeout", "180s"]))
    }

    /// Waits for a condition of an object, as `kubectl wait` does.
    pub(super) fn wait(&self, object: &str, condition: &str) -> anyhow::Result<()> {
        self.described(self.kubectl(&["wait", object, "--for", condition, "--timeout", "180s"]))
    }

    /// Adds the pods and events of the namespace to an error.
    pub(super) fn described<T>(&self, result: anyhow::Result<T>) -> anyhow::Result<()> {
        let Err(error) = result else { return Ok(()) };
        let pods = self.kubectl(&["get", "pods", "--output", "wide"]).unwrap_or_default();
        let events = self.kubectl(&["events", "--types", "Warning"]).unwrap_or_default();
        Err(error.context(format!("pods:\n{pods}events:\n{events}")))
    }

    /// Returns objects, with the arguments of `kubectl get`.
    pub(super) fn get(&self, arguments: &[&str]) -> anyhow::Result<Value> {
        let json = self.kubectl(&[&["get", "--output", "json"], arguments].concat())?;
        serde_json::from_str(&json).context("cannot parse the JSON of kubectl")
    }

    /// Returns the pods with the label `app`.
    pub(super) fn pods(&self, app: &str) -> anyhow::Result<Vec<Value>> {
        let mut list = self.get(&["pods", "--selector", &format!("app={app}")])?;
        serde_json::from_value(list["items"].take()).context("cannot parse the list of pods")
    }

    /// Executes a shell script in a pod or an object's first pod, and returns its output.
    pub(super) fn execute(&self, object: &str, script: &str) -> anyhow::Result<String> {
        self.kubectl(&["exec", object, "--", "sh", "-c", script])
    }

    /// Forwards a port of an object with kubectl, and returns the page that is served there.
    pub(super) fn forward(&self, object: &str, port: &str) -> anyhow::Result<String> {
        let mut forward = self.command();
        let mut forward = forward.args(["port-forward", object, &format!(":{port}")]).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        // Keep the pipe open: kubectl exits if it cannot print.
        let mut printed = BufReader::new(forward.stdout.take().context("the child has no standard output")?);
        printed.read_line(&mut line)?;
        let local = line.strip_prefix("Forwarding from ").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
        let served = || Ok(self.cluster.node.http("GET", &format!("http://{local}/")).ok());
        let served = self.cluster.until("the forwarded port is served", served);
        let _ = forward.kill();
        forward.wait()?;
        served
    }

    /// Waits until a shell script in a pod prints the expected text.
    pub(super) fn until_prints(&self, object: &str, script: &str, expected: &str) -> anyhow::Result<()> {
        let mut last = String::new();
        let poll = || {
            last = self.execute(object, script).unwrap_or_else(|error| format!("{error:#}"));
            Ok((last == expected).then_some(()))
        };
        let done = self.cluster.until(&format!("`{script}` in {object} prints {expected:?}"), poll);
        done.with_context(|| format!("last output of the script: {last:?}"))
    }

    /// Waits until the events of the namespace contain a text.
    pub(super) fn until_event(&self, text: &str) -> anyhow::Result<()> {
        let mut last = String::new();
        let poll = || {
            last = self.kubectl(&["events"])?;
            Ok(last.contains(text).then_some(()))
        };
        let done = self.cluster.until(&format!("an event has {text:?}"), poll);
        done.with_context(|| format!("last events:\n{last}"))
    }
}

impl Drop for Space<'_> {
    fn drop(&mut self) {
        let _ = self.cluster.kubectl(&["delete", "namespace", self.name, "--wait=false", "--ignore-not-found"]);
    }
}

/// Fails unless two values are equal.
pub(super) fn same(what: &str, found: &str, expected: &str) -> anyhow::Result<()> {
    ensure!(found == expected, "{what}: {found:?}, expected {expected:?}");
    Ok(())
}
