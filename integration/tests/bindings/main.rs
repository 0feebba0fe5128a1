//! Service bindings in real containers: what agent-cli delivers, what the five clients that there are read of it before and
//! after a rotation, what is left of the values, and the user's guide, step by step.

#![allow(clippy::unwrap_used)] // where a test cannot go on, it fails

mod clients;
mod delivery;
mod guide;
mod scan;

use std::path::{Path, PathBuf};

use integration::cli::CliOutput;
use serde_json::Value;
use tempfile::TempDir;

/// Where bindings lie.
const ROOT: &str = "/etc/cf-service-bindings";

/// A file with a VCAP_SERVICES.
struct Vcap {
    _dir: TempDir,
    path: PathBuf,
}

impl Vcap {
    fn new(json: &Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vcap.json");
        std::fs::write(&path, json.to_string()).unwrap();
        Self { _dir: dir, path }
    }

    /// As it is given to `--vcap-services`.
    fn source(&self) -> String {
        format!("@{}", self.path.display())
    }
}

/// Runs agent-cli and expects that it does what it is asked for.
fn done(socket: &Path, arguments: &[&str]) -> CliOutput {
    let ran = integration::cli::run(socket, arguments);
    assert_eq!(ran.status, 0, "{arguments:?}: {ran:?}");
    ran
}
