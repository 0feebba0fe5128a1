//! Creates a Python environment in `target/python`, for tests that control the daemon or read its metrics and traces
//! from another language.
//!
//! The environment is created once. A stamp with the versions shows that it is up to date.

use std::path::PathBuf;
use std::process::Command;

use crate::workspace::{Workspace, run, step};

/// Packages from PyPI, pinned so that a new release cannot break the tests.
const PACKAGES: [&str; 6] = [
    "grpcio==1.85.1",
    "grpcio-tools==1.85.1",
    "grpcio-reflection==1.85.1",
    "protobuf==7.36.2",
    "opentelemetry-proto==1.45.2",
    "prometheus-client==0.26.0",
];

/// Creates the environment if missing, and returns its interpreter.
pub(crate) fn environment(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let directory = workspace.target.join("python");
    let python = directory.join("bin/python");
    let stamp = directory.join("packages");
    let wanted = PACKAGES.join("\n");
    if python.exists() && std::fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(python);
    }
    step("Making a Python environment with grpcio and readers of metrics and traces");
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&directory))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"];
    run(Command::new(&python).args(pip).args(PACKAGES))?;
    std::fs::write(stamp, wanted)?;
    Ok(python)
}
