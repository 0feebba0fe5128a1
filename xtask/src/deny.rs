//! `cargo xtask deny`: checks licences, sources, bans and advisories of the dependency tree against `deny.toml`.
//!
//! Uses cargo-deny from PATH if it is installed. Otherwise builds a pinned version from crates.io into `target/tools/`,
//! once. The build takes minutes and needs the network. `.ci/run` passes `--if-installed`, so that a machine without
//! cargo-deny skips the step with a message.

use std::process::ExitCode;

use crate::tools::Tool;
use crate::workspace::{self, Workspace};

const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2" };

/// Checks to run.
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
    let mut command = match CARGO_DENY.installed(workspace) {
        Some(command) => command,
        None if options.if_installed => {
            eprintln!("cargo-deny is not installed: skipped (`cargo xtask deny` builds it)");
            return Ok(ExitCode::SUCCESS);
        }
        None => CARGO_DENY.require(workspace)?,
    };
    command.args(["--workspace", "check", "licenses", "bans", "sources"]);
    if !options.offline {
        command.arg("advisories");
    }
    workspace::run(&mut command)?;
    Ok(ExitCode::SUCCESS)
}
