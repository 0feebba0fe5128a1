//! Service bindings in real containers: what agent-cli delivers, what five existing clients read before and after a
//! rotation, what is left of the values, and the user's guide.

mod clients;
mod delivery;
mod guide;
mod scan;

use std::path::{Path, PathBuf};

use integration::cli::CliOutput;
use serde_json::Value;
use tempfile::TempDir;

/// Root of the bindings.
const ROOT: &str = "/etc/cf-service-bindings";

/// A file with VCAP_SERVICES.
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

    /// The argument of `--vcap-services`.
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
