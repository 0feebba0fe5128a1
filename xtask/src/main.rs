//! `cargo xtask`: commands for developers and CI of this repository, in addition to `cargo build`.
//!
//! Each command does its own setup (packages, binaries, a Python environment) and prints its steps, so a fresh clone on
//! a machine with Rust and gcc needs no preparation. Output is below `target/`. Only the Debian packages listed in
//! [`needs`] are installed into the system.
//!
//! xtask runs the binaries of the product and does not depend on its crates, except the residue search, which is not
//! part of a daemon.

#![forbid(unsafe_code)]

mod adversary;
mod bench;
mod clients;
mod crash;
mod deb;
mod demo;
mod deny;
mod dist;
mod docs;
mod elf;
mod engines;
mod fuzz;
mod generate;
mod go;
mod needs;
mod python;
mod sanitize;
mod soak;
mod test;
mod tools;
mod vm;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Development commands of this repository", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build the programs in target/programs/
    Build {
        /// Optimize the programs as for the package, in target/dist/, which takes twice as long
        #[arg(long)]
        release: bool,
    },
    /// Run a container with a secret file, and prove that no copy of the secret is left
    Demo(demo::Options),
    /// Set up the requirements of tests, and run every test
    Test(test::Options),
    /// Compare the performance with bubblewrap, crun, runc and the bare system calls
    Bench(bench::Options),
    /// Search for inputs that violate a rule
    Fuzz(fuzz::Options),
    /// Kill the executor's processes at every system call of a container's lifecycle
    Crash(crash::Options),
    /// Run random trees, random histories of calls and many short-lived containers for a long time
    Soak(soak::Options),
    /// Attack from the positions of a client, a container, executord's user and an image
    Adversary(adversary::Options),
    /// Run the conformance tests of the Kubernetes runtime interface (critest) against executor-cri and containerd
    EnginesTest(engines::Options),
    /// Test a kubelet with static pods on executor-cri
    KubeletTest(engines::CaseOptions),
    /// Start a Kubernetes cluster on executor-cri, and run it until Ctrl-C
    Cluster(engines::cluster::Options),
    /// Test workloads on a Kubernetes cluster with kubectl
    ClusterTest(engines::cluster::TestOptions),
    /// Kill the programs of a Kubernetes node at random while pods are created and deleted
    ClusterKill(engines::cluster::kill::Options),
    /// Measure the resource usage of 100 pods on a node with executor-cri and containerd, and the node's API requests
    ClusterScale(engines::cluster::scale::Options),
    /// Run the conformance cases of Kubernetes on a cluster
    Conformance(engines::cluster::conformance::Options),
    /// Run the tests of unsafe code and of decoders with AddressSanitizer
    Sanitize(sanitize::Options),
    /// Build the Debian package in target/deb/
    Deb(deb::Options),
    /// Install the package in a virtual machine with systemd and cgroup v2, and test it there
    VmTest(vm::Options),
    /// Write the man pages to target/man/
    Man,
    /// Write the shell completions to target/completions/
    Completions,
    /// Build the documentation as a book in target/book/, and check its links
    Docs(docs::Options),
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
        Command::Build { release } => {
            let build = if *release { dist::build } else { dist::build_quick };
            for binary in build(&workspace)? {
                println!("{binary}");
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Demo(options) => demo::run(&workspace, options),
        Command::Test(options) => test::run(&workspace, options),
        Command::Bench(options) => bench::run(&workspace, options),
        Command::Fuzz(options) => fuzz::run(&workspace, options),
        Command::Crash(options) => crash::run(&workspace, options),
        Command::Soak(options) => soak::run(&workspace, options),
        Command::Adversary(options) => adversary::run(&workspace, options),
        Command::EnginesTest(options) => engines::run_command(&workspace, options),
        Command::KubeletTest(options) => engines::kubelet::run_command(&workspace, options),
        Command::Cluster(options) => engines::cluster::run_command(&workspace, options),
        Command::ClusterTest(options) => engines::cluster::test_command(&workspace, options),
        Command::ClusterScale(options) => engines::cluster::scale::run_command(&workspace, options),
        Command::ClusterKill(options) => engines::cluster::kill::run_command(&workspace, options),
        Command::Conformance(options) => engines::cluster::conformance::run_command(&workspace, options),
        Command::Sanitize(options) => sanitize::run(&workspace, options),
        Command::Deb(options) => deb::run_command(&workspace, options),
        Command::VmTest(options) => vm::run(&workspace, options),
        Command::Man => generate::man(&workspace),
        Command::Completions => generate::completions(&workspace),
        Command::Docs(options) => docs::run_command(&workspace, options),
        Command::Deny(options) => deny::run(&workspace, options),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// Returns the arguments of each `cargo xtask` in a page, up to the end of the command.
    fn commands(page: &str) -> Vec<Vec<&str>> {
        let ends = ['\n', '`', '#', ';', '(', '"', '\''];
        let after = page.split("cargo xtask ").skip(1);
        after.map(|text| text.split(ends).next().unwrap_or_default().split_whitespace().collect()).collect()
    }

    /// Returns the reason if a command does not exist.
    fn fault(words: &[&str]) -> Option<String> {
        let (name, arguments) = words.split_first()?;
        let cli = Cli::command();
        let Some(command) = cli.find_subcommand(name) else { return Some(format!("no command {name}")) };
        let flags = arguments.iter().filter_map(|word| word.strip_prefix("--")).filter(|flag| !flag.is_empty());
        let mut unknown = flags.filter(|flag| {
            let flag = flag.split(['=', ',', '.', ':', ')']).next();
            *flag.unwrap_or_default() != *"help" && !command.get_arguments().any(|known| known.get_long() == flag)
        });
        unknown.next().map(|flag| format!("{name} has no --{flag}"))
    }

    #[test]
    fn commands_that_pages_show_exist() {
        let root = Workspace::find().unwrap().root;
        let mut pages = docs::pages(&root).unwrap();
        pages.insert(".ci/run".into(), std::fs::read_to_string(root.join(".ci/run")).unwrap());
        let shown: Vec<_> =
            pages.iter().flat_map(|(path, page)| commands(page).into_iter().map(move |words| (path, words))).collect();
        assert!(shown.len() > 50, "{} commands", shown.len());
        let faults: Vec<_> = shown
            .into_iter()
            .filter_map(|(path, words)| Some(format!("{}: {}", path.display(), fault(&words)?)))
            .collect();
        assert!(faults.is_empty(), "{}", faults.join("\n"));
        for (text, why) in [("x", "no command x"), ("deb --fast", "deb has no --fast")] {
            assert_eq!(fault(&commands(&format!("`cargo xtask {text}`"))[0]).unwrap(), why);
        }
    }
}
