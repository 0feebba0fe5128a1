//! Fixture of the CNAB tests: a daemon, a root file system with a run tool, and a directory of claims.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use executor_proto::v1::{Container, ListRequest};
use executor_residue::{Needles, Search};
use integration::cli::{CliOutput, finish};
use integration::daemon::Daemon;
use integration::dist;
use integration::rootfs::Rootfs;
use serde_json::{Value, json};

pub(crate) const KEY: &str = "canary-of-a-credential-4f1c77a0b2";
/// Value of the `writeOnly` parameter.
pub(crate) const PASS: &str = "canary-of-a-parameter-90ab31dd57";

/// Test environment for bundles.
pub(crate) struct World {
    pub(crate) daemon: Daemon,
    pub(crate) rootfs: Rootfs,
}

impl World {
    /// Creates an environment with this script as the run tool.
    pub(crate) fn new(script: &str) -> Self {
        Self::from_parts(Daemon::start(), script)
    }

    /// Creates an environment with this daemon.
    pub(crate) fn from_parts(daemon: Daemon, script: &str) -> Self {
        let world = Self { daemon, rootfs: Rootfs::busybox() };
        let outputs = world.rootfs.path().join("cnab/app/outputs");
        fs::create_dir_all(&outputs).expect("mkdir");
        fs::set_permissions(&outputs, fs::Permissions::from_mode(0o777)).expect("chmod");
        world.tool(script);
        let set =
            json!({ "name": "mine", "credentials": [{ "name": "key", "source": { "path": world.path("key") } }] });
        fs::write(world.path("key"), KEY).expect("write");
        fs::write(world.path("pass"), PASS).expect("write");
        fs::write(world.path("creds.json"), set.to_string()).expect("write");
        world
    }

    /// Replaces the run tool.
    pub(crate) fn tool(&self, script: &str) {
        let path = self.rootfs.path().join("cnab/app/run");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("chmod");
    }

    /// Returns the directory of the test's inputs, separate from the daemon's directories.
    fn inputs(&self) -> PathBuf {
        self.rootfs.path().join("srv")
    }

    /// Returns the path of a file in the test's directory.
    pub(crate) fn path(&self, name: &str) -> String {
        self.inputs().join(name).display().to_string()
    }

    /// Writes a bundle and returns its path.
    pub(crate) fn bundle(&self, bundle: &Value) -> String {
        let path = self.path("bundle.json");
        fs::write(&path, bundle.to_string()).expect("write");
        path
    }

    /// Returns the directory of the claims, next to the daemon's state, so that one search covers both.
    pub(crate) fn claims(&self) -> PathBuf {
        self.daemon.setup().home().join("claims")
    }

    /// Builds an `agent-cli cnab` command without starting it.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(dist::binary("agent-cli"));
        command.arg("--socket").arg(self.daemon.socket()).args(["cnab", "--claims-dir"]).arg(self.claims());
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs `agent-cli cnab`.
    pub(crate) fn cnab(&self, arguments: &[&str]) -> CliOutput {
        finish(self.command(arguments).spawn().expect("agent-cli starts"))
    }

    /// Runs an action with the credentials on this root file system.
    pub(crate) fn act(&self, arguments: &[&str]) -> CliOutput {
        let (creds, image) = (self.path("creds.json"), self.rootfs.reference());
        self.cnab(&[arguments, &["-c", &creds, "--image-override", &image]].concat())
    }

    /// Runs an action, which must succeed.
    pub(crate) fn acts(&self, arguments: &[&str]) -> CliOutput {
        let ran = self.act(arguments);
        assert_eq!(ran.status, 0, "{arguments:?}: {ran:?}");
        ran
    }

    /// Returns the JSON output of agent-cli.
    pub(crate) fn reported(&self, arguments: &[&str]) -> Value {
        let ran = self.cnab(&[arguments, &["--json"]].concat());
        assert_eq!(ran.status, 0, "{arguments:?}: {ran:?}");
        ran.json()
    }

    pub(crate) fn containers(&self) -> Vec<Container> {
        self.daemon.api.list(ListRequest::default()).expect("List").containers
    }

    /// Checks that no file of the daemon and no claim contains a secret, and that no container is left.
    pub(crate) fn is_clean(&self, when: &str) {
        let report = search(self.daemon.setup().home());
        assert!(!report.found(), "{when}:\n{report}");
        assert_eq!(report.unsearched, [], "{when}");
        assert!(report.files > 3, "{when}: {report:?}");
        assert_eq!(self.containers().len(), 0, "{when}: a container is left");
    }
}

/// Searches files for both secrets.
pub(crate) fn search(directory: &Path) -> executor_residue::Report {
    let mut needles = Needles::new().expect("randomness");
    needles.add("credential", KEY.as_bytes());
    needles.add("parameter", PASS.as_bytes());
    let mut search = Search::new(&needles);
    search.files(directory);
    search.report()
}

/// Returns a bundle with a credential, a secret parameter, a plain parameter, and two outputs.
pub(crate) fn lamp() -> Value {
    json!({
        "schemaVersion": "v1.0.0", "name": "lamp", "version": "0.1.0",
        "invocationImages": [{ "image": "example/lamp:0.1.0" }],
        "definitions": {
            "period": { "type": "integer", "minimum": 1, "maximum": 60, "default": 10 },
            "pass": { "type": "string", "writeOnly": true },
            "text": { "type": "string" },
            "dark": { "type": "string", "default": "unlit" },
        },
        "parameters": {
            "period": { "definition": "period", "destination": { "env": "PERIOD" } },
            "pass": { "definition": "pass", "destination": { "env": "PASS", "path": "/etc/lamp/pass" } },
        },
        "credentials": { "key": { "env": "KEY", "path": "/etc/lamp/key", "required": true } },
        "outputs": {
            "seen": { "definition": "text", "path": "/cnab/app/outputs/seen" },
            "colour": { "definition": "dark", "path": "/cnab/app/outputs/colour" },
        },
        "actions": {
            "org.example.status": { "modifies": false },
            "org.example.help": { "modifies": false, "stateless": true },
        },
    })
}
