//! `cargo xtask vm-test`: the package in a virtual machine, on Debian 12 with systemd, cgroup version 2 and Linux 6.1.
//!
//! What is tested on the machine that builds is cgroup version 1 or 2 as that machine has it, on its kernel, and without
//! units. Here the package is installed, runs from its units, is restarted and killed under load and removed again, and
//! the tests that matter most run once more. The checks are in `integration/vm/`, one a file; this makes the machine
//! ([`root`]), brings the package and the programs there ([`payload`]), boots it ([`machine`]) and tells what comes back
//! ([`report`]).
//!
//! Needs root, to make the root file system, and Debian's archive once. Nothing is mounted on this machine and no port
//! is opened; the virtual machine has no network. All of it is below `target/vm/`.

mod machine;
mod payload;
mod report;
mod root;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;

use crate::workspace::{Workspace, is_root};
use crate::{deb, dist, needs};

/// What to run, and how.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only checks whose name contains one of these, and those that the others stand on (00 to 09)
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    filter: Vec<String>,
    /// How the processor is had: `tcg` works everywhere, `kvm` is faster where it works
    #[arg(long, value_name = "HOW", default_value = "tcg", value_parser = ["tcg", "kvm"])]
    accel: String,
    /// Minutes after which the machine is switched off and the run has failed
    #[arg(long, value_name = "MINUTES", default_value_t = 45, value_parser = clap::value_parser!(u64).range(1..=240))]
    deadline: u64,
    /// Where Debian's packages come from
    #[arg(long, value_name = "URL", default_value = "http://deb.debian.org")]
    mirror: String,
    /// Make the machine's root file system anew, with what Debian has now
    #[arg(long)]
    fresh: bool,
    /// Leave out the tests of `integration/tests`, which are compiled for it
    #[arg(long)]
    no_tests: bool,
    /// Take the binaries and the package as they are in target/
    #[arg(long)]
    no_build: bool,
    /// Run no check: a root shell on the machine's console, which ends with the shell
    #[arg(long, conflicts_with_all = ["json", "filter"])]
    shell: bool,
    /// Print the results as JSON, and nothing else on standard output
    #[arg(long)]
    json: bool,
}

/// Makes, boots, tells; fails when a check does, or when not all of them came to an end.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    ensure!(is_root(), "making the machine's root file system needs root");
    ensure!(workspace.host.starts_with("x86_64-"), "the virtual machine is x86-64, and the binaries here are not");
    needs::require(&needs::VM)?;
    let root = root::image(workspace, &options.mirror, options.fresh)?;
    if !options.no_build {
        dist::build(workspace)?;
        deb::build(workspace)?;
    }
    let payload = payload::image(workspace, &options.filter, !options.no_tests && !options.shell)?;
    let machine = machine::Machine {
        directory: workspace.target.join("vm"),
        root,
        payload,
        accel: options.accel.clone(),
        deadline: Duration::from_secs(options.deadline * 60),
    };
    if options.shell {
        return machine.shell();
    }
    let mut report = report::Report::new(options.json);
    let ended = machine.run(&options.filter, |line| report.take(line));
    report.finish(ended, &machine.console())
}
