//! `cargo xtask soak`: runs random tests with real containers for a long time, and many short-lived containers in
//! sequence.
//!
//! Each random test prints the seed that reproduces it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};

use crate::workspace::{Workspace, is_root, step};
use crate::{dist, needs};

/// Extent of the tests.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of action trees, each with random exits, timeouts, stops, and kills of executord and the launcher
    #[arg(long, value_name = "N", default_value_t = 2000)]
    trees: u32,
    /// Number of histories of calls, rotations, kills and restarts
    #[arg(long, value_name = "N", default_value_t = 20)]
    histories: u32,
    /// Number of containers that start on one network while their shims are killed at random
    #[arg(long, value_name = "N", default_value_t = 500)]
    killed_starts: u32,
    /// Number of short-lived containers in a row, after which resource usage must not have grown
    #[arg(long, value_name = "N", default_value_t = 30_000)]
    lives: u32,
    /// Also write the figures of the short-lived containers to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Builds the binaries and runs the tests. Fails at the first violation of a rule.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    ensure!(is_root(), "containers require root: run the soak as root");
    needs::require(&needs::SOAK)?;
    dist::build(workspace)?;
    let test = |program: &str, name: &str, variables: &[(&str, String)]| -> anyhow::Result<bool> {
        let mut cargo =
            workspace.cargo_with_ctrl_c(["test", "-p", "integration", "--test", program, "--", name, "--nocapture"]);
        cargo.env("EXECUTOR_DIST", workspace.dist()).envs(variables.iter().map(|(name, value)| (name, value)));
        Ok(cargo.status()?.success())
    };
    step(&format!("{} trees of actions", options.trees));
    let mut passed =
        options.trees == 0 || test("supervise", "random_trees::", &[("EXECUTOR_TREES", options.trees.to_string())])?;
    for number in 1..=options.histories {
        step(&format!("History {number} of {}", options.histories));
        passed &= test("supervise", "histories::", &[])?;
    }
    if options.killed_starts > 0 {
        step(&format!("{} starts, with shims killed at random", options.killed_starts));
        let count = options.killed_starts.to_string();
        passed &= test("network", "starts_killed_at_random", &[("EXECUTOR_KILLED_STARTS", count)])?;
    }
    if options.lives > 0 {
        step(&format!("{} short-lived containers", options.lives));
        let mut variables = vec![("EXECUTOR_LIVES", options.lives.to_string())];
        if let Some(json) = &options.json {
            // Make the path absolute, because the test runs in another directory.
            let json = std::path::absolute(json).with_context(|| format!("cannot resolve {}", json.display()))?;
            variables.push(("EXECUTOR_LIVES_JSON", json.display().to_string()));
        }
        passed &= test("supervise", "lives::", &variables)?;
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
