//! `cargo xtask vm-test`: tests the package in a virtual machine, on Debian 12 with systemd, cgroup version 2 and Linux
//! 6.1.
//!
//! Tests on the build machine cover only its kernel and its cgroup version, and run no systemd units. In the virtual
//! machine, the checks in `integration/vm/` install the package, start, restart and kill its units under load, repeat
//! the most important tests, and remove the package. This module creates the machine ([`root`]), copies the package and
//! the programs into it ([`payload`]), boots it ([`machine`]) and prints the results ([`report`]). `--power-cut` kills
//! the machine repeatedly instead ([`power_cut`]). `--memory` kills it once and searches all its memory ([`memory`]).
//!
//! The command needs root to create the root file system. The first run downloads packages from the Debian archive. The
//! command mounts nothing on this machine and opens no port. The virtual machine has no network. All files are below
//! `target/vm/`.

mod machine;
mod memory;
mod payload;
mod power_cut;
mod report;
mod root;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;

use crate::workspace::{Workspace, is_root};
use crate::{deb, dist, needs};

/// The checks to run, and the machine.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run only checks whose name contains one of these texts; the setup checks 00 to 09 always run
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    filter: Vec<String>,
    /// Accelerator: `tcg` works everywhere, `kvm` is faster where it works
    #[arg(long, value_name = "HOW", default_value = "tcg", value_parser = ["tcg", "kvm"])]
    accel: String,
    /// Minutes after which the machine is switched off and the run fails
    #[arg(long, value_name = "MINUTES", default_value_t = 150, value_parser = clap::value_parser!(u64).range(1..=240))]
    deadline: u64,
    /// Mirror of Debian's packages
    #[arg(long, value_name = "URL", default_value = "http://deb.debian.org")]
    mirror: String,
    /// Recreate the machine's root file system, with Debian's current packages
    #[arg(long)]
    fresh: bool,
    /// Skip the tests of `integration/tests`, which are compiled for the machine
    #[arg(long)]
    no_tests: bool,
    /// Run no checks: kill the machine this many times during a stream of containers, and compare the results of the
    /// containers with the results that the next boot reports
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "20", conflicts_with_all = ["filter", "shell"],
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    power_cut: Option<u32>,
    /// Run no checks: end containers with secrets of every kind, by every entry point, and search all of the machine's
    /// memory one second later, with the kernel's defaults and with init_on_free=1
    #[arg(long, conflicts_with_all = ["filter", "shell", "power_cut"])]
    memory: bool,
    /// Use the existing binaries and package in target/
    #[arg(long)]
    no_build: bool,
    /// Run no checks: open a root shell on the machine's console; the machine stops when the shell exits
    #[arg(long, conflicts_with_all = ["json", "filter"])]
    shell: bool,
    /// Print only the results on standard output, as JSON
    #[arg(long)]
    json: bool,
}

/// Creates and boots the machine and prints the report. Fails if a check fails or times out.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    ensure!(is_root(), "the root file system of the machine requires root: run the command as root");
    ensure!(
        workspace.host.starts_with("x86_64-"),
        "the virtual machine requires an x86-64 host, not {}",
        workspace.host
    );
    needs::require(&needs::VM)?;
    let root = root::image(workspace, &options.mirror, options.fresh)?;
    if !options.no_build {
        dist::build(workspace)?;
        deb::build(workspace)?;
    }
    let with_tests = !options.no_tests && !options.shell && !options.memory && options.power_cut.is_none();
    let payload = payload::image(workspace, &options.filter, with_tests)?;
    let machine = machine::Machine {
        directory: workspace.target.join("vm"),
        payload,
        accel: options.accel.clone(),
        deadline: Duration::from_secs(options.deadline * 60),
        changes: match options.power_cut {
            None => machine::Changes::Discarded,
            Some(_) => machine::Changes::Stored(power_cut::disk(&root)?),
        },
        shown: options.memory.then(|| memory::files(&root)),
        root,
    };
    if options.memory {
        return memory::run(&machine, options.json);
    }
    if let Some(cuts) = options.power_cut {
        return power_cut::run(&machine, cuts, options.json);
    }
    if options.shell {
        return machine.shell();
    }
    let mut report = report::Report::new(options.json);
    let ended = machine.run(&options.filter, |line| report.add_line(line));
    report.finish(ended, &machine.console())
}
