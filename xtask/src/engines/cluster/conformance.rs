//! `cargo xtask conformance`: runs the cases of Kubernetes (e2e.test, e2e_node.test) on a cluster.
//!
//! The command fails if a case fails that is not in the list of known failures ([`known`]).

mod known;
mod suite;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, ensure};

use self::known::Verdict;
use self::suite::Suite;
use super::kubectl::Cluster;
use super::{Start, build};
use crate::engines::Kind;
use crate::engines::cases::programs;
use crate::engines::report::Report;
use crate::engines::site::MAX_NODES;
use crate::engines::supplies::{self, Supplies};
use crate::workspace::{Workspace, output, run, step};

/// Images in addition to the images of the cluster: the flag of the program `images` and the name of the file.
const IMAGES: [(&str, &str); 4] = [
    ("-agnhost", "agnhost"),
    ("-agnhost-root", "agnhost.tar"),
    ("-etcd", "etcd"),
    ("-sample-apiserver", "sample-apiserver"),
];
/// Images that are pulled before the first case, since the time limits of some cases include the pull.
const PULLED: [&str; 5] = ["agnhost:2.66.1", "agnhost:2.55", "busybox:1.37.0-2", "nginx:1.27.0-2", "nginx:1.28.0-2"];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Source of the cases
    #[arg(long, value_enum, default_value = "cluster")]
    suite: Suite,
    /// Run only cases whose name matches this regular expression
    #[arg(long, value_name = "REGEX")]
    focus: Option<String>,
    /// Skip cases whose name matches this regular expression
    #[arg(long, value_name = "REGEX")]
    skip: Option<String>,
    /// Runtime of the node
    #[arg(long, value_enum, default_value = "executor")]
    runtime: Kind,
    /// Number of nodes. Some cases need two nodes
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=MAX_NODES.into()))]
    nodes: u8,
    /// Number of cases that run at the same time
    #[arg(long, value_name = "NUMBER", default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=64))]
    processes: u16,
    /// Print the names of the cases, and run none
    #[arg(long)]
    list: bool,
    /// Print only the results on standard output, as JSON
    #[arg(long)]
    json: bool,
    /// Copy the logs of all programs to this directory
    #[arg(long, value_name = "DIRECTORY")]
    logs: Option<PathBuf>,
    /// Use the programs of the product in this directory instead of building them
    #[arg(long, value_name = "DIRECTORY")]
    programs: Option<PathBuf>,
}

/// Starts a cluster, and runs the selected cases.
pub(crate) fn run_command(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let Options { suite, runtime, nodes, .. } = *options;
    ensure!(suite == Suite::Cluster || nodes == 1, "--suite node: the cases need a cluster with one node");
    let supplies = build(workspace, runtime)?;
    supplies::conformance(workspace, suite.package())?;
    if options.list {
        list(options, &supplies, tempfile::tempdir()?.path())?.titles().for_each(|title| println!("{title}"));
        return Ok(ExitCode::SUCCESS);
    }
    supplies.agnhost()?;
    let programs = programs(workspace, options.programs.as_deref())?;
    let (programs, kubelet) = (&programs, suite.kubelet());
    let start = Start { images: &IMAGES, kubelet, ..Start::new(workspace, &supplies, programs, runtime, nodes) };
    let report = start.run(options.logs.as_deref(), |cluster, _| run_cases(options, &supplies, cluster))?;
    let verdict = Verdict::new(&report, options.runtime);
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{report}\n{verdict}");
    }
    Ok(if verdict.has_passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the selected cases without running them.
fn list(options: &Options, supplies: &Supplies, directory: &Path) -> anyhow::Result<Report> {
    let report = directory.join("report.json");
    let mut command = Command::new(program(options.suite, supplies));
    command.args(["--ginkgo.dry-run", "--ginkgo.json-report"]).arg(&report).current_dir(directory);
    command.args(options.suite.selection(options).iter().map(|flag| format!("--ginkgo.{flag}")));
    output(&mut command)?;
    Report::parse_conformance(String::new(), &fs::read(&report)?)
}

/// Returns the path of the program with the cases.
fn program(suite: Suite, supplies: &Supplies) -> PathBuf {
    supplies.programs().join(format!("{}.test", suite.package()))
}

fn run_cases(options: &Options, supplies: &Supplies, cluster: &Cluster) -> anyhow::Result<Report> {
    let runtime = cluster.node.crictl(&["version"])?;
    let words = runtime.lines().filter_map(|line| line.strip_prefix("Runtime"));
    let runtime: Vec<_> = words.filter_map(|line| Some(line.split_once(':')?.1.trim())).take(2).collect();
    let runtime = runtime.join(" ");
    step("Pulling images");
    for node in cluster.nodes() {
        for image in PULLED {
            node.crictl(&["--timeout", "5m", "pull", &format!("registry.k8s.io/e2e-test-images/{image}")])?;
        }
    }
    let log = cluster.node.path("conformance.log");
    step(&format!("Running the conformance cases on {runtime} (40 minutes for all); the log is {}", log.display()));
    let mut command = cluster.node.command(&supplies.programs().join("ginkgo"));
    command.args(["--no-color", "--timeout=5h", "--json-report=report.json"]);
    command.arg(format!("--procs={}", options.processes)).arg("--output-dir").arg(cluster.node.path(""));
    command.args(options.suite.selection(options).iter().map(|flag| format!("--{flag}")));
    command.arg(program(options.suite, supplies)).arg("--").args(options.suite.arguments(cluster)?);
    let home = cluster.node.path("home");
    fs::create_dir_all(&home)?;
    let file = fs::File::create(&log)?;
    command.current_dir(&home).env("HOME", &home).stdout(file.try_clone()?).stderr(file);
    // Ignore the exit status: failed cases are in the report, and without a report the next step fails.
    let _ = run(&mut command);
    let text = fs::read(cluster.node.path("report.json"));
    let text = text.with_context(|| format!("ginkgo wrote no report; use --logs to copy {}", log.display()))?;
    Report::parse_conformance(runtime, &text)
}
