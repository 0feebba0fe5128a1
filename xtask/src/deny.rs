//! `cargo xtask deny`: checks licences, sources, bans and advisories of the dependency tree against `deny.toml`.
//!
//! Uses cargo-deny from PATH if it is installed; otherwise builds a pinned version from crates.io into `target/tools/`,
//! once. That takes minutes and needs the network, so `.ci/run` passes `--if-installed`: on a machine without
//! cargo-deny the step is skipped, with a message.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::needs;
use crate::workspace::{self, Workspace, step};

/// Pinned, so that a new release of cargo-deny cannot break the check.
const VERSION: &str = "0.20.2";

/// The checks to make.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Skip the advisories, whose database is fetched from the network
    #[arg(long)]
    offline: bool,
    /// Skip the check if cargo-deny is not installed, instead of building it
    #[arg(long)]
    if_installed: bool,
}

/// Runs cargo-deny, after building it if it is missing.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let mut command = match installed(workspace) {
        Some(command) => command,
        None if options.if_installed => {
            eprintln!("cargo-deny is not installed: skipped (`cargo xtask deny` builds it)");
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

/// Root directory for [`install`]; cargo installs programs into its `bin`.
fn tools(workspace: &Workspace) -> PathBuf {
    workspace.target.join("tools")
}

/// The cargo-deny in `target/tools`. Without `cargo` it has no subcommand `deny`.
fn own(workspace: &Workspace) -> Command {
    let mut command = Command::new(tools(workspace).join("bin/cargo-deny"));
    command.current_dir(&workspace.root);
    command
}

/// Returns an available cargo-deny: from PATH, or the pinned version in `target/tools`.
fn installed(workspace: &Workspace) -> Option<Command> {
    let succeeds = |mut command: Command| command.arg("--version").output().ok().filter(|done| done.status.success());
    if succeeds(workspace.cargo(["deny"])).is_some() {
        return Some(workspace.cargo(["deny"]));
    }
    let reported = succeeds(own(workspace))?;
    let reported = String::from_utf8_lossy(&reported.stdout).into_owned();
    (reported.split_whitespace().last() == Some(VERSION)).then(|| own(workspace))
}

/// Builds cargo-deny below `target/`, without installing it into the system.
fn install(workspace: &Workspace) -> anyhow::Result<Command> {
    needs::require(&needs::BUILD)?;
    let root = tools(workspace);
    step(&format!("Building cargo-deny {VERSION} into {} (some minutes, once)", root.display()));
    let mut cargo = workspace.cargo(["install", "--locked", "--force", "cargo-deny", "--version"]);
    cargo.arg(format!("={VERSION}")).arg("--root").arg(&root).arg("--target-dir").arg(root.join("build"));
    workspace::run(&mut cargo).context("cargo-deny is not installed, and building it needs crates.io")?;
    // Only the program is needed now.
    let _ = std::fs::remove_dir_all(root.join("build"));
    Ok(own(workspace))
}
