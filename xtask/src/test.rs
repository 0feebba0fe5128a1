//! `cargo xtask test`: all tests, with their set-up.
//!
//! The tests that need root start the real binaries ([`dist::build_tested`]). They are handed over by the
//! environment: EXECUTOR_DIST (the binaries), EXECUTOR_CONTROL_DIST (the same, so that they wipe nothing),
//! EXECUTOR_PYTHON (an interpreter with grpcio), EXECUTOR_GO (modules and plugins for Go), EXECUTOR_CLIENTS (service binding clients, OpenBao). One cargo run
//! builds and runs everything: two with different packages would unify features differently and build the large dependencies twice.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::bail;

use crate::workspace::{Workspace, is_root, step};
use crate::{clients, demo, dist, go, needs, python};

/// Test that runs only in the virtual machine (`integration/vm/checks/14-quota.sh`).
const QUOTA_TEST: &str = "where_there_are_project_quotas_they_hold_the_limit";

/// Tests that are run once more without shells, where nothing else is asked for: of both ways to make a container.
const BOTH_WAYS: [&str; 5] = ["isolation", "attacks", "residue", "crash", "restart"];

/// Tests among them that make no container, or make it the same way each time.
const ONE_WAY: [&str; 3] =
    ["an_installation_is_repaired", "wherever_a_fetch_or_a_renewal_is_cut", "a_secret_that_stays_is_found"];

/// The tests to run.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only tests whose name contains this text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Leave out the tests that need root
    #[arg(long)]
    no_root: bool,
    /// Number of shells that wait in the daemons of the tests (`[shells] ready`)
    #[arg(long, value_name = "N")]
    shells: Option<u32>,
}

/// Sets up and runs; fails when a test fails, or when the root tests could not run and were not waived.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let with_root = is_root() && !options.no_root;
    let mut cargo = workspace.cargo_with_ctrl_c(["test", "--workspace", "--no-fail-fast"]);
    let mut environment: Vec<(&str, OsString)> = Vec::new();
    let mut showed = true;
    needs::require(&needs::TEST)?;
    if with_root {
        needs::require(needs::ROOT_TEST)?;
        let python = python::environment(workspace)?;
        environment.push(("EXECUTOR_CLIENTS", clients::install(workspace, &python)?.into()));
        environment.push(("EXECUTOR_PYTHON", python.into()));
        environment.push(("EXECUTOR_GO", go::environment(workspace)?.into()));
        let tested = dist::build_tested(workspace)?;
        environment.push(("EXECUTOR_CONTROL_DIST", dist::build_control(workspace)?.into()));
        if options.filter.is_none() {
            step("Showing the demo");
            showed = demo::show(&tested)? == ExitCode::SUCCESS;
        }
        environment.push(("EXECUTOR_DIST", tested.into()));
        // One at a time, because root tests count what is on the host before and after.
        environment.push(("RUST_TEST_THREADS", "1".into()));
        cargo.envs(environment.iter().map(|(name, value)| (name, value)));
        if let Some(ready) = options.shells {
            cargo.env("EXECUTOR_SHELLS", ready.to_string());
        }
        step("Running all tests");
    } else {
        cargo.args(["--exclude", "integration"]);
        step("Running the tests that need no root");
    }
    cargo.args(&options.filter);
    if with_root {
        // Tests that need root are marked as ignored, so that a run without root does not report them as passed.
        cargo.args(["--", "--include-ignored", "--skip", QUOTA_TEST]);
    }
    let mut passed = cargo.status()?.success() && showed;
    if with_root && options.filter.is_none() && options.shells.is_none() {
        step("Running some of them without shells");
        let mut args = vec!["test".to_owned(), "--workspace".to_owned(), "--no-fail-fast".to_owned()];
        args.extend(BOTH_WAYS.iter().flat_map(|test| ["--test".to_owned(), (*test).to_owned()]));
        let mut again = workspace.cargo_with_ctrl_c(args);
        again.envs(environment.iter().map(|(name, value)| (name, value)));
        again.env("EXECUTOR_SHELLS", "0").args(["--", "--include-ignored"]);
        again.args(ONE_WAY.iter().flat_map(|test| ["--skip", test]));
        passed &= again.status()?.success();
    }
    if !with_root {
        eprintln!(
            "The tests that need root were NOT run: those of the package `integration`, and those reported as ignored."
        );
        if !options.no_root {
            bail!("run as root for every test, or say --no-root");
        }
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
