//! Finds programs from crates.io in PATH, or builds a pinned version once into `target/tools/`.
//!
//! Building a program takes minutes and needs the network. Nothing is installed into the system.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;

use crate::needs;
use crate::workspace::{self, Workspace, step};

/// A program whose crate has the same name.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// Version to build. It is pinned, so that a new release cannot break a command.
    pub(crate) version: &'static str,
}

impl Tool {
    /// Returns the program if any version of it is in PATH, or if the pinned version is in `target/tools/`.
    pub(crate) fn installed(&self, workspace: &Workspace) -> Option<Command> {
        let version = |program: PathBuf| {
            let output = Command::new(program).arg("--version").output().ok().filter(|done| done.status.success())?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.split_whitespace().last().map(|last| last.trim_start_matches('v').to_owned())
        };
        if version(self.name.into()).is_some() {
            return Some(self.command(workspace, self.name.into()));
        }
        let own = self.path(workspace);
        (version(own.clone())? == self.version).then(|| self.command(workspace, own))
    }

    /// Returns the program, after building it if it is missing.
    pub(crate) fn require(&self, workspace: &Workspace) -> anyhow::Result<Command> {
        if let Some(command) = self.installed(workspace) {
            return Ok(command);
        }
        needs::require(&needs::BUILD)?;
        let Self { name, version } = self;
        let root = root(workspace);
        step(&format!("Building {name} {version} into {} (some minutes, once)", root.display()));
        let mut cargo = workspace.cargo(["install", "--locked", "--force", name, "--version"]);
        cargo.arg(format!("={version}")).arg("--root").arg(&root).arg("--target-dir").arg(root.join("build"));
        workspace::run(&mut cargo).with_context(|| {
            format!(
                "{name} is not installed and could not be built; on a machine that can reach crates.io, run `cargo \
                 install --locked {name} --version ={version}`, then copy the program into a directory in PATH on this \
                 machine"
            )
        })?;
        // Keep only the program.
        let _ = std::fs::remove_dir_all(root.join("build"));
        Ok(self.command(workspace, self.path(workspace)))
    }

    fn command(&self, workspace: &Workspace, program: PathBuf) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&workspace.root);
        command
    }

    fn path(&self, workspace: &Workspace) -> PathBuf {
        root(workspace).join("bin").join(self.name)
    }
}

/// Returns the root directory of the programs; cargo installs them into its `bin`.
fn root(workspace: &Workspace) -> PathBuf {
    workspace.target.join("tools")
}
