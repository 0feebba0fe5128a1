//! `cargo xtask soak`: the random tests of real containers, for long.
//!
//! Each prints the seed that repeats it.

use std::process::ExitCode;

use anyhow::ensure;

use crate::dist;
use crate::workspace::{Workspace, is_root, step};

/// How long.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Trees of actions, each with random ends, timeouts, stops, and kills of executord and the launcher
    #[arg(long, value_name = "N", default_value_t = 2000)]
    trees: u32,
    /// Histories of calls, rotations, kills and restarts
    #[arg(long, value_name = "N", default_value_t = 20)]
    histories: u32,
}

/// Builds the binaries and runs; fails at the first difference from what the rules say.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    ensure!(is_root(), "containers need root");
    dist::build(workspace)?;
    let test = |name: &str, variables: &[(&str, String)]| -> anyhow::Result<bool> {
        let mut cargo = workspace.cargo_with_ctrl_c(["test", "-p", "integration", "--test", name, "--", "--nocapture"]);
        cargo.env("EXECUTOR_DIST", workspace.dist()).envs(variables.iter().map(|(name, value)| (name, value)));
        Ok(cargo.status()?.success())
    };
    step(&format!("{} trees of actions", options.trees));
    let mut passed = options.trees == 0 || test("random_trees", &[("EXECUTOR_TREES", options.trees.to_string())])?;
    for number in 1..=options.histories {
        step(&format!("History {number} of {}", options.histories));
        passed &= test("histories", &[])?;
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
