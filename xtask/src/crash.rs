//! `cargo xtask crash`: kills executord, the launcher, the shim and its helpers at every system call of a container's
//! lifecycle, and fails on leaked resources.
//!
//! The test is in `executor-crash` (`integration/`), which gets the path of the binaries. docs/crash.md has the
//! assertions.

use std::process::{Command, ExitCode};

use anyhow::ensure;

use crate::workspace::{Workspace, is_root, step};
use crate::{dist, needs};

/// The processes to kill, and the system calls at which to kill them.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Kill only these processes: executord, launcher, shim, inject, cloner, namespace, everything, orphan; with
    /// `--warm-pool` also warm
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "all")]
    target: Vec<String>,
    /// Kill only at this system call, to replay a failure
    #[arg(long, value_name = "N")]
    at: Option<u64>,
    /// Kill only at every K-th system call
    #[arg(long, value_name = "K", conflicts_with = "at")]
    every: Option<u64>,
    /// Use containers that run a tree of six steps
    #[arg(long)]
    tree: bool,
    /// Use warm containers
    #[arg(long)]
    warm_pool: bool,
    /// Put the containers on a built-in network, with a published port
    #[arg(long)]
    network: bool,
    /// Use requests with secret references; executord fetches each secret twice
    #[arg(long, conflicts_with = "tree")]
    references: bool,
    /// Kill `agent-cli bundle` instead, during these commands: install, upgrade, rollback, uninstall
    #[arg(long, value_name = "COMMAND", value_delimiter = ',', conflicts_with_all = ["target", "tree", "warm_pool", "network", "references"])]
    operation: Vec<String>,
    /// Kill these processes while a container's certificate is replaced: executord, signer, next-signer, launcher, shim
    /// [without a name: all]
    #[arg(long, value_name = "PROCESS", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["target", "tree", "warm_pool", "network", "references", "operation"])]
    renewals: Option<String>,
    /// Kill these processes during the life cycle of a Kubernetes pod: cri, executord, launcher [without a name: all]
    #[arg(long, value_name = "PROCESS", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["target", "tree", "warm_pool", "network", "references", "operation", "renewals"])]
    pods: Option<String>,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

/// Builds the binaries and kills their processes; fails on any leak.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    ensure!(is_root(), "containers and ptrace require root: run the command as root");
    needs::require(&needs::CRASH)?;
    dist::build(workspace)?;
    step("Building executor-crash");
    let mut command = Command::new(dist::build_tool(workspace, "integration", "executor-crash")?);
    command.env("EXECUTOR_DIST", workspace.dist());
    if options.target.iter().all(|target| target != "all") {
        command.arg("--target").arg(options.target.join(","));
    }
    if !options.operation.is_empty() {
        command.arg("--operation").arg(options.operation.join(","));
    }
    for (option, processes) in [("--renewals", &options.renewals), ("--pods", &options.pods)] {
        if let Some(processes) = processes {
            command.arg(option).args(Some(processes).filter(|processes| !processes.is_empty()));
        }
    }
    for (option, value) in [("--at", options.at), ("--every", options.every)] {
        if let Some(value) = value {
            command.arg(option).arg(value.to_string());
        }
    }
    let flags = [
        ("--json", options.json),
        ("--tree", options.tree),
        ("--warm-pool", options.warm_pool),
        ("--network", options.network),
        ("--references", options.references),
    ];
    for (option, is_set) in flags {
        if is_set {
            command.arg(option);
        }
    }
    step("Killing at every system call");
    let status = command.status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
