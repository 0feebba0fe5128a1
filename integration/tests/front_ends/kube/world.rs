//! Fixture of the play tests: a daemon, a root file system, and a directory of YAML files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use executor_proto::v1::{Container, ListRequest};
use executor_residue::process::Process;
use executor_residue::{Needles, Report, Search};
use integration::api::pid;
use integration::cli::{CliOutput, finish};
use integration::daemon::Daemon;
use integration::dist;
use integration::rootfs::Rootfs;
use integration::wait;
use serde_json::Value;

/// Values of a Secret before and after a rotation, and of a secret variable.
pub(crate) const OLD: &str = "canary-of-a-secret-71f2c9d0a4e85b36";
pub(crate) const NEW: &str = "canary-of-a-rotation-5e80b13fc7d2946a";
pub(crate) const VARIABLE: &str = "canary-of-a-variable-0c4d92ba18f7e053";

/// A pod with two containers, an init container, a sidecar, probes, hooks, a Secret, a ConfigMap and an emptyDir.
pub(crate) const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 10
  initContainers:
  - name: prepare
    image: example.com/box:1
    command: [sh, -c, "echo prepared > /work/prepared"]
    volumeMounts: [{name: work, mountPath: /work}]
  - name: proxy
    image: example.com/box:1
    restartPolicy: Always
    command: [sh, -c, "test -e /work/prepared && echo up > /work/proxy; trap 'exit 0' TERM; while :; do sleep 0.1; done"]
    startupProbe: {exec: {command: [cat, /work/proxy]}, periodSeconds: 1, timeoutSeconds: 20, failureThreshold: 60}
    volumeMounts: [{name: work, mountPath: /work}]
  containers:
  - name: app
    image: example.com/box:1
    command: [sh, -c, "cat /work/proxy; echo got $(PASS) $GREETING; trap 'cat /work/stopping; exit 0' TERM; while :; do sleep 0.1; done"]
    env:
    - {name: PASS, valueFrom: {secretKeyRef: {name: once, key: word}}}
    envFrom: [{configMapRef: {name: words}}]
    livenessProbe: {exec: {command: [cat, /settings/GREETING]}, periodSeconds: 1, timeoutSeconds: 20, failureThreshold: 60}
    readinessProbe: {exec: {command: [cat, /work/started]}, periodSeconds: 1, timeoutSeconds: 20}
    lifecycle:
      postStart: {exec: {command: [sh, -c, 'test -n "$PASS" && echo started > /work/started']}}
      preStop: {exec: {command: [sh, -c, 'test -n "$PASS" && echo asked to stop > /work/stopping']}}
    volumeMounts:
    - {name: work, mountPath: /work}
    - {name: db, mountPath: /secrets/db}
    - {name: words, mountPath: /settings}
  - name: second
    image: example.com/box:1
    command: [sh, -c, "cat /work/prepared /secrets/db/password; trap 'exit 0' TERM; while :; do sleep 0.1; done"]
    volumeMounts:
    - {name: work, mountPath: /work, readOnly: true}
    - {name: db, mountPath: /secrets/db}
  volumes:
  - {name: work, emptyDir: {}}
  - {name: db, secret: {secretName: db, defaultMode: 0400}}
  - {name: words, configMap: {name: words}}
"#;

pub(crate) struct KubeFixture {
    pub(crate) daemon: Daemon,
    pub(crate) rootfs: Rootfs,
}

impl KubeFixture {
    pub(crate) fn new() -> Self {
        let world = Self { daemon: Daemon::start(), rootfs: Rootfs::busybox() };
        fs::create_dir(world.inputs()).unwrap();
        world
    }

    /// Returns the directory of the test's input files, outside of the searched directories.
    fn inputs(&self) -> PathBuf {
        self.rootfs.path().join("srv/files")
    }

    /// Returns the state directory of agent-cli, next to the daemon's state, so that one search covers both.
    fn runtime_dir(&self) -> PathBuf {
        self.daemon.setup().home().join("runtime")
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.inputs().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// Writes the objects with this secret value, this secret variable and this greeting in the ConfigMap. Returns the
    /// path.
    pub(crate) fn objects(&self, secret: &str, variable: &str, greeting: &str) -> String {
        let configuration = format!(
            "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: db}}\nstringData: {{password: {secret}}}\n\
             ---\napiVersion: v1\nkind: Secret\nmetadata: {{name: once}}\nstringData: {{word: {variable}}}\n\
             ---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: words}}\ndata: {{GREETING: {greeting}}}\n"
        );
        self.write("web.yaml", &format!("{POD}{configuration}"))
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(dist::binary("agent-cli"));
        command.arg("--socket").arg(self.daemon.socket()).arg("kube").args(arguments);
        command.env("XDG_RUNTIME_DIR", self.runtime_dir());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn kube(&self, arguments: &[&str]) -> CliOutput {
        finish(self.command(arguments).spawn().unwrap())
    }

    /// Plays a file on this root file system.
    pub(crate) fn play(&self, arguments: &[&str]) -> CliOutput {
        self.kube(&[arguments, &["--image-override", &self.image()]].concat())
    }

    pub(crate) fn image(&self) -> String {
        format!("example.com/box:1={}", self.rootfs.reference())
    }

    pub(crate) fn play_ok(&self, path: &str) -> CliOutput {
        let ran = self.play(&["play", path]);
        assert_eq!(ran.status, 0, "{ran:?}");
        ran
    }

    pub(crate) fn reported(&self, arguments: &[&str]) -> Value {
        let ran = self.kube(&[arguments, &["--json"]].concat());
        assert_eq!(ran.status, 0, "{arguments:?}: {ran:?}");
        ran.json()
    }

    /// Returns the parsed output of `diff`: each pod and its change.
    pub(crate) fn diff(&self, path: &str) -> Vec<(String, String)> {
        let ran = self.play(&["diff", path, "--json"]);
        let document = ran.json();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let changes: Vec<_> =
            document["pods"].as_array().unwrap().iter().map(|pod| (text(&pod["name"]), text(&pod["change"]))).collect();
        let differs = changes.iter().any(|(_, change)| change != "unchanged");
        assert_eq!(ran.status, i32::from(differs), "{ran:?}");
        changes
    }

    pub(crate) fn containers(&self) -> Vec<Container> {
        self.daemon.api.list(ListRequest::default()).unwrap().containers
    }

    pub(crate) fn container(&self, id: &str) -> Container {
        self.daemon.api.get(id).unwrap()
    }

    /// Returns the content of a file in a running container.
    pub(crate) fn content(&self, id: &str, path: &str) -> String {
        // The process is reported a moment after the state.
        let running = wait::until("the process is reported", || {
            Some(self.container(id)).filter(|container| !container.processes.is_empty())
        });
        let path = format!("/proc/{}/root{path}", pid(&running));
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Searches the daemon's processes and files, and the state of agent-cli.
    pub(crate) fn search(&self, also: &[u32]) -> Report {
        let needles = needles();
        let mut search = Search::new(&needles);
        let own = [self.daemon.pid() as u32].into_iter().chain(self.daemon.launcher().map(|pid| pid as u32));
        own.chain(also.iter().copied()).filter_map(Process::from_pid).for_each(|process| search.process(&process));
        search.files(self.daemon.setup().home());
        search.report()
    }

    /// Searches a directory, as a control.
    pub(crate) fn search_files(&self, path: &Path) -> Report {
        let needles = needles();
        let mut search = Search::new(&needles);
        search.files(path);
        search.report()
    }

    pub(crate) fn files(&self) -> PathBuf {
        self.inputs()
    }
}

fn needles() -> Needles {
    let mut needles = Needles::new().unwrap();
    for (label, value) in [("old", OLD), ("new", NEW), ("variable", VARIABLE)] {
        needles.add(label, value.as_bytes());
    }
    needles
}
