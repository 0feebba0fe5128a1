//! `cargo xtask adversary`: attacks the release binaries from six positions, and fails if an attack succeeds.
//!
//! The attacks are in `executor-adversary` (`integration/`), which gets the path of the binaries. docs/adversary.md has
//! the claims.

use std::process::{Command, ExitCode};

use anyhow::ensure;

use crate::workspace::{Workspace, is_root, step};
use crate::{dist, needs, python};

/// The attacks to run, and their extent.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// List the attacks without running them
    #[arg(long)]
    list: bool,
    /// Run only attacks whose name contains this text
    #[arg(long, value_name = "WORDS")]
    filter: Option<String>,
    /// Run only attacks from this position: client, container, executord, image, server, machine
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    position: Vec<String>,
    /// Run the short versions of the attacks, as `cargo xtask test` does
    #[arg(long)]
    short: bool,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

/// Builds the binaries and attacks them. Fails if an attack succeeds or a control fails.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    ensure!(is_root(), "the attacks require root: run the command as root");
    needs::require(needs::ROOT_TEST)?;
    let python = python::environment(workspace)?;
    dist::build(workspace)?;
    step("Building executor-adversary");
    let mut command = Command::new(dist::build_tool(workspace, "integration", "executor-adversary")?);
    command.env("EXECUTOR_DIST", workspace.dist()).env("EXECUTOR_PYTHON", python);
    if let Some(words) = &options.filter {
        command.arg("--filter").arg(words);
    }
    if !options.position.is_empty() {
        command.arg("--position").arg(options.position.join(","));
    }
    for (option, given) in [("--list", options.list), ("--long", !options.short), ("--json", options.json)] {
        command.args(given.then_some(option));
    }
    step("Attacking");
    let status = command.status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
