//! The five service binding clients under `target/clients`, for the tests that read bindings with them: two from PyPI,
//! three from npm, pinned with their digests by the files in `integration/clients`.
//!
//! They are installed once: a stamp with those files shows that they are up to date. No package's own scripts are run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::{Workspace, run, step};

const REQUIREMENTS: &str = "requirements.txt";
const PACKAGES: [&str; 2] = ["package.json", "package-lock.json"];

/// Installs the clients if they are missing, and returns their directory, which contains `python` and `node_modules`.
/// `python` is an interpreter that has pip.
pub(crate) fn install(workspace: &Workspace, python: &Path) -> anyhow::Result<PathBuf> {
    let (pinned, directory) = (workspace.root.join("integration/clients"), workspace.target.join("clients"));
    let stamp = directory.join("stamp");
    let mut wanted = fs::read_to_string(pinned.join(REQUIREMENTS))?;
    for name in PACKAGES {
        wanted.push_str(&fs::read_to_string(pinned.join(name))?);
    }
    if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(directory);
    }
    step("Installing service binding clients from PyPI and npm");
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    fs::create_dir_all(&directory)?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"];
    let mut install = Command::new(python);
    install.args(pip).args(["--require-hashes", "--target"]).arg(directory.join("python"));
    run(install.arg("--requirement").arg(pinned.join(REQUIREMENTS)))?;
    for name in PACKAGES {
        fs::copy(pinned.join(name), directory.join(name))?;
    }
    let npm = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"];
    run(Command::new("npm").args(npm).current_dir(&directory))?;
    fs::write(stamp, wanted)?;
    Ok(directory)
}
