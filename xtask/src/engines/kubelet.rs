//! `cargo xtask kubelet-test`: a stock kubelet with executor-cri as its runtime, without an API server.
//!
//! The kubelet runs static pods, and each case judges it by its own HTTP endpoints, as another program on the node would.
//! Everything runs in namespaces of its own ([`super::room`]) with a small disk, which a case fills.

mod cases;
mod node;
mod pods;
mod view;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context as _, ensure};
use serde::Serialize;

use self::cases::{ALONE, Case, TOGETHER};
use self::node::Node;
use super::room::Room;
use super::supplies::{self, Supplies};
use crate::workspace::{Workspace, is_root, step};
use crate::{dist, needs};

/// Cases that run at the same time.
const WORKERS: usize = 4;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only cases whose name contains this text
    #[arg(long, value_name = "TEXT")]
    focus: Option<String>,
    /// Print the names of the cases, and run none
    #[arg(long)]
    list: bool,
    /// Print only the results on standard output, as JSON
    #[arg(long)]
    json: bool,
    /// Copy the logs of the kubelet, executor-cri and executord to this directory
    #[arg(long, value_name = "DIRECTORY")]
    logs: Option<PathBuf>,
    /// Use the programs of the product in this directory instead of building them
    #[arg(long, value_name = "DIRECTORY")]
    programs: Option<PathBuf>,
}

#[derive(Serialize)]
struct Outcome {
    case: &'static str,
    passed: bool,
    /// Why the case failed.
    reason: String,
    seconds: f64,
}

/// Builds the kubelet and runs the cases. Fails if one fails.
pub(crate) fn run_command(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let is_selected = |case: &&Case| options.focus.as_ref().is_none_or(|focus| case.name.contains(focus));
    let [together, alone] = [TOGETHER, ALONE].map(|cases| cases.iter().filter(is_selected).collect::<Vec<_>>());
    if options.list {
        together.iter().chain(&alone).for_each(|case| println!("{}", case.name));
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(!together.is_empty() || !alone.is_empty(), "no case has a name that contains the text of --focus");
    ensure!(is_root(), "the kubelet needs root");
    needs::require(&needs::ENGINES)?;
    needs::require(&needs::KUBELET)?;
    let supplies = Supplies::prepare(workspace)?;
    let kubelet = supplies::kubelet(workspace)?;
    let programs = match &options.programs {
        Some(programs) => programs.canonicalize().with_context(|| programs.display().to_string())?,
        None => {
            dist::build(workspace)?;
            workspace.dist()
        }
    };
    let directory = tempfile::Builder::new().prefix("executor-kubelet-").tempdir()?;
    step("Starting executord, executor-cri and the kubelet");
    let room = Arc::new(Room::open(directory.path(), node::PREPARE, "kubelet-test")?);
    let node = Node::start(workspace, &supplies, &room, kubelet, programs, directory.path());
    let outcomes = node.map(|node| {
        let mut outcomes = run_together(&node, together);
        outcomes.extend(alone.iter().map(|case| run(&node, case)));
        outcomes
    });
    if let Some(logs) = &options.logs {
        super::keep_logs(directory.path(), logs)?;
    }
    let outcomes = outcomes?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&outcomes)?);
    } else {
        print(&outcomes);
    }
    let has_passed = outcomes.iter().all(|outcome| outcome.passed);
    Ok(if has_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_together(node: &Node, cases: Vec<&Case>) -> Vec<Outcome> {
    let (waiting, outcomes) = (Mutex::new(VecDeque::from(cases)), Mutex::new(Vec::new()));
    let next = || waiting.lock().ok()?.pop_front();
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(case) = next() {
                    let outcome = run(node, case);
                    if let Ok(mut outcomes) = outcomes.lock() {
                        outcomes.push(outcome);
                    }
                }
            });
        }
    });
    outcomes.into_inner().unwrap_or_default()
}

fn run(node: &Node, case: &Case) -> Outcome {
    let start = Instant::now();
    let result = (case.run)(node);
    let seconds = start.elapsed().as_secs_f64();
    let reason = result.as_ref().err().map(|error| format!("{error:#}")).unwrap_or_default();
    step(&format!("{:6} {seconds:5.1} s  {}", if result.is_ok() { "passed" } else { "FAILED" }, case.name));
    Outcome { case: case.name, passed: result.is_ok(), reason, seconds }
}

fn print(outcomes: &[Outcome]) {
    println!("| case | result | seconds |\n|---|---|---|");
    for outcome in outcomes {
        let result = if outcome.passed { "passed" } else { "failed" };
        println!("| {} | {result} | {:.1} |", outcome.case, outcome.seconds);
    }
    let passed = outcomes.iter().filter(|outcome| outcome.passed).count();
    println!("| all: {} | {passed} passed, {} failed | |", outcomes.len(), outcomes.len() - passed);
    for outcome in outcomes.iter().filter(|outcome| !outcome.passed) {
        println!("\n{}: {}", outcome.case, outcome.reason);
    }
}
