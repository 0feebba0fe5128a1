//! Fixture of the bundle tests: a daemon, a root file system, and a directory of bundles.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use executor_proto::v1::{Container, ListRequest};
use integration::cli::{CliOutput, finish};
use integration::daemon::Daemon;
use integration::dist;
use integration::rootfs::Rootfs;
use serde_json::Value;

pub(crate) const SECRET: &str = "canary-of-a-bundle-3ab81fe6d2";

pub(crate) struct World {
    pub(crate) daemon: Daemon,
    rootfs: Rootfs,
    dir: tempfile::TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { daemon: Daemon::start(), rootfs: Rootfs::busybox(), dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// Writes a plain bundle with a Deployment that prints a word and reads a Secret. If `ready` is false, the
    /// Deployment never becomes ready.
    pub(crate) fn plain(&self, name: &str, word: &str, ready: bool) -> String {
        let probe = if ready { "test -e /secrets/a" } else { "exit 1" };
        let deployment = format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: demo}}\nspec:\n  selector: {{matchLabels: {{app: demo}}}}\n  template:\n    \
             metadata: {{labels: {{app: demo}}}}\n    spec:\n      terminationGracePeriodSeconds: 0\n      containers:\n      - name: app\n        \
             image: example.com/box:1\n        command: [sh, -c, 'echo {word}; cat /secrets/a; sleep 100000']\n        \
             readinessProbe: {{exec: {{command: [sh, -c, '{probe}']}}, periodSeconds: 1}}\n        volumeMounts: [{{name: s, mountPath: /secrets}}]\n      \
             volumes: [{{name: s, secret: {{secretName: s}}}}]\n"
        );
        self.write(&format!("{name}/manifests/deployment.yaml"), &deployment);
        let secret = format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\nstringData: {{a: {SECRET}}}\n");
        self.write(&format!("{name}/manifests/secret.yaml"), &secret);
        self.path(name).display().to_string()
    }

    /// Writes an operator bundle with one deployment.
    pub(crate) fn operator(&self, version: &str) -> PathBuf {
        let csv = format!(
            "apiVersion: operators.coreos.com/v1alpha1\nkind: ClusterServiceVersion\nmetadata: {{name: demo.v{version}}}\nspec:\n  displayName: Demo\n  \
             version: {version}\n  installModes: [{{type: AllNamespaces, supported: true}}]\n  install:\n    strategy: deployment\n    spec:\n      \
             deployments:\n      - name: demo\n        spec:\n          selector: {{matchLabels: {{app: demo}}}}\n          template:\n            \
             metadata: {{labels: {{app: demo}}}}\n            spec:\n              terminationGracePeriodSeconds: 0\n              \
             containers: [{{name: app, image: 'example.com/box:1', command: [sh, -c, 'echo {version}; sleep 100000']}}]\n"
        );
        let prefix = "  operators.operatorframework.io.bundle.";
        let annotations = format!(
            "annotations:\n{prefix}mediatype.v1: registry+v1\n{prefix}manifests.v1: manifests/\n{prefix}metadata.v1: metadata/\n\
             {prefix}package.v1: demo\n{prefix}channels.v1: stable\n"
        );
        self.write(&format!("operator-{version}/manifests/demo.csv.yaml"), &csv);
        self.write(&format!("operator-{version}/metadata/annotations.yaml"), &annotations);
        self.path(&format!("operator-{version}"))
    }

    pub(crate) fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(dist::binary("agent-cli"));
        command.arg("--socket").arg(self.daemon.socket()).arg(program).args(arguments);
        command.env("HOME", self.path("home")).env("XDG_RUNTIME_DIR", self.path("runtime"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn bundle(&self, arguments: &[&str]) -> CliOutput {
        finish(self.command("bundle", arguments).spawn().unwrap())
    }

    #[track_caller]
    pub(crate) fn good(&self, arguments: &[&str]) -> CliOutput {
        let ran = self.bundle(arguments);
        assert_eq!(ran.status, 0, "{arguments:?}: {ran:?}");
        ran
    }

    pub(crate) fn image(&self) -> String {
        format!("example.com/box:1={}", self.rootfs.reference())
    }

    /// Runs an install or upgrade command, which must succeed, with this root file system as the bundle's image.
    #[track_caller]
    pub(crate) fn installs(&self, arguments: &[&str]) {
        self.good(&[arguments, &["--image-override", &self.image()]].concat());
    }

    pub(crate) fn status(&self, name: &str) -> Value {
        self.good(&["status", name, "--json"]).json()
    }

    /// Returns the namespaces of the existing containers, parsed from the prefix of each container id.
    pub(crate) fn namespaces(&self) -> Vec<String> {
        let containers: Vec<Container> = self.daemon.api.list(ListRequest::default()).unwrap().containers;
        let mut found: Vec<String> = containers
            .iter()
            .filter_map(|it| it.id.split_once('_').map(|(namespace, _)| namespace.to_owned()))
            .collect();
        found.sort();
        found.dedup();
        found
    }
}

/// Returns the status and reason of a condition.
pub(crate) fn condition(status: &Value, kind: &str) -> (String, String) {
    let conditions = status["installation"]["conditions"].as_array().unwrap();
    let found = conditions.iter().find(|it| it["type"] == kind).unwrap();
    (found["status"].as_str().unwrap().into(), found["reason"].as_str().unwrap().into())
}

/// Returns true if a file below a directory contains `wanted`.
pub(crate) fn contains(directory: &Path, wanted: &[u8]) -> bool {
    let Ok(entries) = fs::read_dir(directory) else { return false };
    entries.map(Result::unwrap).any(|entry| match entry.file_type().unwrap() {
        kind if kind.is_dir() => contains(&entry.path(), wanted),
        kind if kind.is_file() => {
            fs::read(entry.path()).is_ok_and(|bytes| bytes.windows(wanted.len()).any(|window| window == wanted))
        }
        _ => false,
    })
}
