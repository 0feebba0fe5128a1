//! `cargo xtask deny`: licences, sources, bans and advisories of the dependency tree, by `deny.toml`.
//!
//! cargo-deny is taken from PATH if it is installed; otherwise a pinned version is built from crates.io into
//! `target/tools/`, once. That takes minutes and needs the network, so `.ci/run` passes `--if-installed`: a machine
//! without cargo-deny skips the step, and says so.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::needs;
use crate::workspace::{self, Workspace, step};

/// Pinned, so that a new release of cargo-deny breaks nothing here.
const VERSION: &str = "0.20.2";

/// The checks to make.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Leave out the advisories, whose database is fetched from the network
    #[arg(long)]
    offline: bool,
    /// Check nothing where cargo-deny is not installed, instead of building it
    #[arg(long)]
    if_installed: bool,
}

/// Runs cargo-deny, which is built first if it is missing.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let mut command = match installed(workspace) {
        Some(command) => command,
        None if options.if_installed => {
            eprintln!("cargo-deny is not installed: left out (`cargo xtask deny` builds it)");
            return Ok(ExitCode::SUCCESS);
        }
        None => install(workspace)?,
    };
    command.args(["--workspace", "check", "licenses", "bans", "sources"]);
    if !options.offline {
        command.arg("advisories");
    }
    workspace::run(&mut command)?;
    Ok(ExitCode::SUCCESS)
}

/// The directory that [`install`] fills: cargo puts programs into its `bin`.
fn tools(workspace: &Workspace) -> PathBuf {
    workspace.target.join("tools")
}

/// The cargo-deny in `target/tools`. Called without `cargo`, it takes no subcommand `deny`.
fn own(workspace: &Workspace) -> Command {
    let mut command = Command::new(tools(workspace).join("bin/cargo-deny"));
    command.current_dir(&workspace.root);
    command
}

/// The available cargo-deny: the one in PATH, or the pinned version in `target/tools`.
fn installed(workspace: &Workspace) -> Option<Command> {
    let succeeds = |mut command: Command| command.arg("--version").output().ok().filter(|done| done.status.success());
    if succeeds(workspace.cargo(["deny"])).is_some() {
        return Some(workspace.cargo(["deny"]));
    }
    let reported = succeeds(own(workspace))?;
    let reported = String::from_utf8_lossy(&reported.stdout).into_owned();
    (reported.split_whitespace().last() == Some(VERSION)).then(|| own(workspace))
}

/// Builds cargo-deny below `target/`: nothing is installed into the system.
fn install(workspace: &Workspace) -> anyhow::Result<Command> {
    needs::require(&needs::BUILD)?;
    let root = tools(workspace);
    step(&format!("Building cargo-deny {VERSION} into {} (some minutes, once)", root.display()));
    let mut cargo = workspace.cargo(["install", "--locked", "--force", "cargo-deny", "--version"]);
    cargo.arg(format!("={VERSION}")).arg("--root").arg(&root).arg("--target-dir").arg(root.join("build"));
    workspace::run(&mut cargo).context("cargo-deny is not installed, and building it needs crates.io")?;
    // Only the program is needed from here on.
    let _ = std::fs::remove_dir_all(root.join("build"));
    Ok(own(workspace))
}
