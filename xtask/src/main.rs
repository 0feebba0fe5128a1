//! `cargo xtask`: everything a person or CI does with this repository beyond `cargo build`.
//!
//! Each command does its own set-up (packages, binaries, a Python environment) and says what it does, so
//! that a clean clone on a machine with Rust and gcc needs no step before it. What comes out lands below
//! `target/`; nothing is installed into the system but the Debian packages listed in [`needs`].
//!
//! It knows the product from outside only: the binaries' command lines, never their crates. (The search for residue is
//! none of the product's daemons.)

#![forbid(unsafe_code)]

mod adversary;
mod bench;
mod clients;
mod crash;
mod deb;
mod demo;
mod deny;
mod dist;
mod elf;
mod fuzz;
mod generate;
mod needs;
mod python;
mod sanitize;
mod test;
mod vm;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's chores", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build the release binaries, side by side in target/dist/
    Build,
    /// Run a container with a secret file, and prove that nothing of the secret is left
    Demo(demo::Options),
    /// Set up what tests need, and run every test
    Test(test::Options),
    /// Measure against crun, runc and the raw floor
    Bench(bench::Options),
    /// Look for inputs that break a rule
    Fuzz(fuzz::Options),
    /// Kill our processes at every system call of a container's life
    Crash(crash::Options),
    /// Attack from the positions of a client, a container, executord's user and an image
    Adversary(adversary::Options),
    /// Run the tests of what is unsafe and what decodes with AddressSanitizer
    Sanitize(sanitize::Options),
    /// Make the Debian package in target/deb/
    Deb(deb::Options),
    /// Install the package in a virtual machine with systemd and cgroup v2, and test it there
    VmTest(vm::Options),
    /// Write the man pages to target/man/
    Man,
    /// Write the shell completions to target/completions/
    Completions,
    /// Check licences, sources, bans and advisories with cargo-deny
    Deny(deny::Options),
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    let workspace = Workspace::find()?;
    match &cli.command {
        Command::Build => {
            for binary in dist::build(&workspace)? {
                println!("{binary}");
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Demo(options) => demo::run(&workspace, options),
        Command::Test(options) => test::run(&workspace, options),
        Command::Bench(options) => bench::run(&workspace, options),
        Command::Fuzz(options) => fuzz::run(&workspace, options),
        Command::Crash(options) => crash::run(&workspace, options),
        Command::Adversary(options) => adversary::run(&workspace, options),
        Command::Sanitize(options) => sanitize::run(&workspace, options),
        Command::Deb(options) => deb::run_command(&workspace, options),
        Command::VmTest(options) => vm::run(&workspace, options),
        Command::Man => generate::man(&workspace),
        Command::Completions => generate::completions(&workspace),
        Command::Deny(options) => deny::run(&workspace, options),
    }
}
