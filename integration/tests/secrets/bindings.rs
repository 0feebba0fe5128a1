//! Service bindings in real containers: delivery by agent-cli, the output of five existing clients before and after a
//! rotation, residue of the values, and the user's guide.

mod clients;
mod delivery;
mod guide;
mod scan;

use std::path::{Path, PathBuf};

use integration::cli::CliOutput;
use serde_json::Value;
use tempfile::TempDir;

const ROOT: &str = "/etc/cf-service-bindings";

/// A file that contains a VCAP_SERVICES document.
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

    /// Returns the value of the option `--vcap-services`.
    fn source(&self) -> String {
        format!("@{}", self.path.display())
    }
}

/// Runs agent-cli, which must succeed.
fn run_agent_cli(socket: &Path, arguments: &[&str]) -> CliOutput {
    let ran = integration::cli::run(socket, arguments);
    assert_eq!(ran.status, 0, "{arguments:?}: {ran:?}");
    ran
}
