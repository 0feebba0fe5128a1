//! `cargo xtask deny`: licences, sources, bans and advisories of the dependency tree, by `deny.toml`.
//!
//! cargo-deny is not installed from here: it takes minutes to build, and CI machines have it or not.

use std::process::ExitCode;

use anyhow::bail;

use crate::workspace::{self, Workspace};

/// What to check.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Leave out the advisories, whose database is fetched from the network
    #[arg(long)]
    offline: bool,
}

/// Runs cargo-deny, or says how to get it.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    if !workspace.cargo(["deny", "--version"]).output().is_ok_and(|done| done.status.success()) {
        bail!("cargo-deny is not installed: `cargo install --locked cargo-deny`");
    }
    let mut command = workspace.cargo(["deny", "--workspace", "check", "licenses", "bans", "sources"]);
    if !options.offline {
        command.arg("advisories");
    }
    workspace::run(&mut command)?;
    Ok(ExitCode::SUCCESS)
}
