//! Access to a cluster with kubectl.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::engines::cases::until;
use crate::engines::node::Node;

/// Maximum wait for a condition. A machine with two processors starts a pod in about a second, and some controllers act
/// once a minute.
pub(super) const CONDITION_TIMEOUT: Duration = Duration::from_secs(180);

pub(super) struct Cluster {
    /// First node, with the control plane.
    pub(super) node: Node,
    pub(super) others: Vec<Node>,
    kubectl: PathBuf,
    /// Processes of nsenter that run the programs of the control plane.
    _control: Vec<Child>,
}

impl Cluster {
    pub(super) fn new((node, others): (Node, Vec<Node>), kubectl: PathBuf, control: Vec<Child>) -> Self {
        Self { node, others, kubectl, _control: control }
    }

    /// Returns all nodes.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Node> {
        std::iter::once(&self.node).chain(&self.others)
    }

    /// Returns a command that runs kubectl as administrator.
    pub(super) fn command(&self) -> Command {
        self.admin(self.node.command(&self.kubectl))
    }

    /// Returns a command that runs a shell command at a terminal, which `script` provides.
    pub(super) fn terminal(&self, line: &str) -> Command {
        let mut command = self.node.command(Path::new("script"));
        command.args(["--quiet", "--return", "--command", line, "/dev/null"]);
        self.admin(command)
    }

    fn admin(&self, mut command: Command) -> Command {
        command.env("KUBECONFIG", self.node.path("admin.kubeconfig")).env("HOME", self.node.path("home"));
        command
    }

    /// Returns a command that runs another program of the supplies as administrator.
    pub(super) fn tool(&self, name: &str) -> Command {
        self.admin(self.node.command(&self.kubectl.with_file_name(name)))
    }

    /// Returns the path of kubectl.
    pub(super) fn program(&self) -> &Path {
        &self.kubectl
    }

    /// Runs kubectl, and returns its standard output.
    pub(super) fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        output(self.command().args(arguments), "")
    }

    /// Creates or changes the objects of a manifest.
    pub(super) fn apply(&self, manifest: &str) -> anyhow::Result<()> {
        output(self.command().args(["apply", "--filename", "-"]), manifest).map(drop)
    }

    /// Returns objects, with the arguments of `kubectl get`.
    pub(super) fn get(&self, arguments: &[&str]) -> anyhow::Result<Value> {
        let json = self.kubectl(&[&["get", "--output", "json"], arguments].concat())?;
        serde_json::from_str(&json).context("cannot parse the JSON of kubectl")
    }

    /// Waits until `poll` returns a value.
    pub(super) fn until<T>(&self, what: &str, poll: impl FnMut() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
        until(CONDITION_TIMEOUT, what, poll)
    }

    /// Waits until all nodes are ready.
    pub(super) fn until_nodes_are_ready(&self) -> anyhow::Result<()> {
        for node in self.nodes() {
            let is_ready = || {
                let Ok(node) = self.get(&["node", node.name()]) else { return Ok(None) };
                Ok(condition(&node, "Ready").then_some(()))
            };
            self.until(&format!("{} is ready", node.name()), is_ready)?;
        }
        Ok(())
    }

    /// Returns the ids and attempts of the runtime's running containers, for the pods of a namespace whose names begin
    /// with a prefix.
    pub(super) fn running(&self, namespace: &str, prefix: &str) -> anyhow::Result<Vec<String>> {
        let list: Value = serde_json::from_str(&self.node.crictl(&["ps", "--output", "json"])?)?;
        let containers = list["containers"].as_array().context("the JSON of crictl has no list of containers")?;
        let containers = containers.iter().filter(|container| {
            let labels = &container["labels"];
            let name = labels["io.kubernetes.pod.name"].as_str().unwrap_or_default();
            labels["io.kubernetes.pod.namespace"] == namespace && name.starts_with(prefix)
        });
        let one = |container: &Value| format!("{} {}", container["id"], container["metadata"]["attempt"]);
        let mut all: Vec<String> = containers.map(one).collect();
        all.sort();
        Ok(all)
    }

    /// Writes a script that runs kubectl as administrator in the namespaces of the first node. Returns the path of the
    /// script.
    pub(super) fn write_wrapper(&self) -> anyhow::Result<PathBuf> {
        let path = self.node.path("kubectl");
        let enter = self.node.command(Path::new("env"));
        let enter: Vec<_> = enter.get_args().map(|word| word.display().to_string()).collect();
        let (namespaces, config) = (enter.join(" "), self.node.path("admin.kubeconfig"));
        let script = format!(
            "#!/bin/sh\nexec nsenter --wdns=\"$PWD\" {namespaces} KUBECONFIG={} {} \"$@\"\n",
            config.display(),
            self.kubectl.display()
        );
        fs::write(&path, script)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
        Ok(path)
    }
}

/// Returns true if an object has a condition with the status True.
pub(super) fn condition(object: &Value, kind: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| one["type"] == kind && one["status"] == "True")
}

/// Runs a command with an input, and returns its standard output. The error contains the standard error.
pub(super) fn output(command: &mut Command, input: &str) -> anyhow::Result<String> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().context("the child has no standard input")?.write_all(input.as_bytes())?;
    let done = child.wait_with_output()?;
    let words: Vec<_> =
        command.get_args().skip_while(|word| *word != "--pid").map(|word| word.to_string_lossy()).collect();
    let [printed, errors] = [done.stdout, done.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    ensure!(done.status.success(), "{} failed ({}): {errors}{printed}", words.join(" "), done.status);
    Ok(printed)
}
