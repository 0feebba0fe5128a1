//! Selects, runs and reports the test cases of a node or a cluster.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde::Serialize;

use super::site::{self, Site};
use crate::dist;
use crate::workspace::{Workspace, step};

/// Maximum number of cases that run at the same time.
const WORKERS: usize = 4;
/// Interval between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

#[derive(clap::Args)]
pub(crate) struct CaseOptions {
    /// Run only cases whose name contains this text
    #[arg(long, value_name = "TEXT")]
    focus: Option<String>,
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

/// A test case that runs against a `T`: a node or a cluster.
pub(super) struct Case<T> {
    name: &'static str,
    run: fn(&T) -> anyhow::Result<()>,
}

pub(super) const fn case<T>(name: &'static str, run: fn(&T) -> anyhow::Result<()>) -> Case<T> {
    Case { name, run }
}

/// Cases that `--focus` selects.
pub(super) struct Selection<T: 'static> {
    /// Cases that can run at the same time.
    together: Vec<&'static Case<T>>,
    /// Cases that run alone, in this order.
    alone: Vec<&'static Case<T>>,
}

#[derive(Serialize)]
struct Outcome {
    case: &'static str,
    passed: bool,
    /// Reason of the failure; empty if the case passed.
    reason: String,
    seconds: f64,
}

impl CaseOptions {
    /// Returns the selected cases, or prints their names and returns none if `--list` is given.
    ///
    /// # Errors
    ///
    /// Returns an error if `--focus` selects no case.
    pub(super) fn select<T>(
        &self,
        together: &'static [Case<T>],
        alone: &'static [Case<T>],
    ) -> anyhow::Result<Option<Selection<T>>> {
        let is_selected = |case: &&Case<T>| self.focus.as_ref().is_none_or(|focus| case.name.contains(focus));
        let [together, alone] = [together, alone].map(|cases| cases.iter().filter(is_selected).collect::<Vec<_>>());
        if self.list {
            together.iter().chain(&alone).for_each(|case| println!("{}", case.name));
            return Ok(None);
        }
        ensure!(!together.is_empty() || !alone.is_empty(), "no case has a name that contains the text of --focus");
        Ok(Some(Selection { together, alone }))
    }

    /// Returns the directory with the product's programs, which are built unless `--programs` is given.
    pub(super) fn programs(&self, workspace: &Workspace) -> anyhow::Result<PathBuf> {
        programs(workspace, self.programs.as_deref())
    }

    /// Runs the cases on the started node or cluster, copies the logs of the nodes, and prints the results.
    pub(super) fn run_and_report<T: Sync>(
        &self,
        started: anyhow::Result<T>,
        selection: Selection<T>,
        sites: &[Arc<Site>],
    ) -> anyhow::Result<ExitCode> {
        let outcomes = started.map(|subject| {
            let mut outcomes = run_together(&subject, selection.together);
            outcomes.extend(selection.alone.iter().map(|case| run(&subject, case)));
            outcomes
        });
        if let Some(logs) = &self.logs {
            site::copy_logs(sites, logs)?;
        }
        let outcomes = outcomes?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&outcomes)?);
        } else {
            print(&outcomes);
        }
        let has_passed = outcomes.iter().all(|outcome| outcome.passed);
        Ok(if has_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Returns the directory with the product's programs, which are built if none is given.
pub(super) fn programs(workspace: &Workspace, given: Option<&Path>) -> anyhow::Result<PathBuf> {
    match given {
        Some(programs) => {
            programs.canonicalize().with_context(|| format!("cannot resolve the directory {}", programs.display()))
        }
        None => {
            dist::build(workspace)?;
            Ok(workspace.dist())
        }
    }
}

/// Waits until `poll` returns a value, for at most `timeout`.
pub(super) fn until<T>(
    timeout: Duration,
    what: &str,
    mut poll: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(value) = poll().with_context(|| what.to_owned())? {
            return Ok(value);
        }
        if Instant::now() > deadline {
            bail!("condition not met within {} s: {what}", timeout.as_secs());
        }
        std::thread::sleep(POLL_INTERVAL); // between two checks
    }
}

fn run_together<T: Sync>(subject: &T, cases: Vec<&Case<T>>) -> Vec<Outcome> {
    let (waiting, outcomes) = (Mutex::new(VecDeque::from(cases)), Mutex::new(Vec::new()));
    let next = || waiting.lock().ok()?.pop_front();
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(case) = next() {
                    let outcome = run(subject, case);
                    if let Ok(mut outcomes) = outcomes.lock() {
                        outcomes.push(outcome);
                    }
                }
            });
        }
    });
    outcomes.into_inner().unwrap_or_default()
}

fn run<T>(subject: &T, case: &Case<T>) -> Outcome {
    let start = Instant::now();
    let result = (case.run)(subject);
    let seconds = start.elapsed().as_secs_f64();
    let reason = result.as_ref().err().map(|error| format!("{error:#}")).unwrap_or_default();
    step(&match reason.is_empty() {
        true => format!("passed {seconds:5.1} s  {}", case.name),
        false => format!("FAILED {seconds:5.1} s  {}: {reason}", case.name),
    });
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
