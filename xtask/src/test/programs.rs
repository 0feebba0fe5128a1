//! Builds the test programs with cargo and runs them. [`LANES`] programs run concurrently, because most programs wait
//! most of the time. Their tests share no names, directories, addresses and ports, and each run has its own mount
//! namespace. The large programs run once per module, so that no run is much longer than the others. If a run hangs,
//! all its processes are killed.

mod processes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{ffi::OsString, fs, io, io::Write as _, thread};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::dist;
use crate::workspace::{Workspace, is_root, step};

/// Number of concurrent runs: two for each CPU of a small machine.
const LANES: usize = 4;
/// Programs whose runs take minutes. They start first, so that none of them runs alone at the end.
const LONGEST: [&str; 7] = ["secrets", "supervise", "recover", "network", "cri", "interface", "launch"];
/// A program that runs alone, because it exhausts scarce resources of the host and measures the remaining resources.
const ALONE: &str = "adversary";

pub(super) struct Program {
    pub(super) package: String,
    /// Name of its cargo target: a library, a binary or a file of `tests/`.
    pub(super) name: String,
    executable: PathBuf,
    /// Working directory: the directory of the package, as with `cargo test`.
    directory: PathBuf,
}

/// A run of a program.
pub(super) struct Job<'a> {
    pub(super) program: &'a Program,
    pub(super) title: String,
    /// Arguments of the test harness.
    pub(super) arguments: Vec<String>,
    /// Value of EXECUTOR_WARM_POOL, if it differs from the value of the other runs.
    pub(super) warm_pool: Option<&'static str>,
}

impl Program {
    /// Returns the names of all tests, grouped by their outermost module. Tests outside of a module are grouped under
    /// the program's name.
    pub(super) fn modules(&self) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
        let listed = Command::new(&self.executable).args(["--list", "--format", "terse"]).output()?;
        ensure!(listed.status.success(), "{} --list failed: {}", self.executable.display(), listed.status);
        let mut modules: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for test in String::from_utf8(listed.stdout)?.lines().filter_map(|line| line.strip_suffix(": test")) {
            let module = test.split_once("::").map_or(self.name.as_str(), |(module, _)| module);
            modules.entry(module.to_owned()).or_default().push(test.to_owned());
        }
        Ok(modules)
    }
}

impl<'a> Job<'a> {
    /// Returns a run of the given tests, or `None` if there are no tests.
    pub(super) fn from_tests(
        program: &'a Program,
        title: &str,
        tests: Vec<String>,
        warm_pool: Option<&'static str>,
    ) -> Option<Self> {
        let flags = ["--include-ignored", "--exact"].map(str::to_owned);
        let title = format!("{} {title}", program.name);
        (!tests.is_empty()).then(|| Self {
            program,
            title,
            arguments: flags.into_iter().chain(tests).collect(),
            warm_pool,
        })
    }
}

/// Builds the tests of the whole workspace.
pub(super) fn build(workspace: &Workspace) -> anyhow::Result<Vec<Program>> {
    let arguments = ["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"];
    let mut cargo = dist::cargo_for_tests(workspace, &arguments);
    let done = cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    ensure!(done.status.success(), "the tests do not compile: {}", done.status);
    let mut programs = Vec::new();
    for line in String::from_utf8_lossy(&done.stdout).lines() {
        let message: Value = serde_json::from_str(line).context("cannot parse the messages of cargo")?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        if message["profile"]["test"] != true {
            continue;
        }
        if let (Some(executable), Some(name), Some(manifest)) =
            (text(&message["executable"]), text(&message["target"]["name"]), text(&message["manifest_path"]))
        {
            let directory = Path::new(&manifest).parent().context("the manifest's path has no directory")?.to_owned();
            let package = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
            programs.push(Program { package, name, executable: executable.into(), directory });
        }
    }
    ensure!(!programs.is_empty(), "cargo reported no test program");
    Ok(programs)
}

/// Executes all runs, [`LANES`] of them concurrently, each for at most `limit`. Prints a line for each run that passed,
/// and the whole output of each run that failed. Returns true if all passed.
pub(super) fn run(jobs: &[Job<'_>], environment: &[(&str, OsString)], limit: Duration) -> anyhow::Result<bool> {
    let (alone, order): (Vec<_>, Vec<_>) = jobs.iter().partition(|job| job.program.name == ALONE);
    let order = alternate(order);
    let outcome = Mutex::new(Outcome::default());
    for (order, lanes) in [(order, LANES), (alone, 1)] {
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..lanes {
                scope.spawn(|| {
                    while let Some(job) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let began = Instant::now();
                        let result = execute(job, environment, limit);
                        let mut outcome = outcome.lock().expect("no thread panics while it holds this lock");
                        outcome.add(job, result, began.elapsed().as_secs());
                    }
                });
            }
        });
    }
    let outcome = outcome.into_inner().expect("no thread panicked");
    eprintln!("{} tests passed in {} runs", outcome.passed, jobs.len());
    for title in &outcome.failed {
        eprintln!("FAILED: {title}");
    }
    Ok(outcome.failed.is_empty())
}

/// Sorts the runs so that the runs of the [`LONGEST`] programs come first and alternate: some programs mostly wait, and
/// others mostly compute.
fn alternate<'a>(jobs: Vec<&'a Job<'a>>) -> Vec<&'a Job<'a>> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut order: Vec<_> = jobs
        .into_iter()
        .map(|job| {
            let rank = LONGEST.iter().position(|name| *name == job.program.name);
            let number = counts.entry(&job.program.name).or_default();
            *number += 1;
            ((rank.is_none(), *number, rank), job)
        })
        .collect();
    order.sort_by_key(|(key, _)| *key);
    order.into_iter().map(|(_, job)| job).collect()
}

#[derive(Default)]
struct Outcome {
    passed: u64,
    failed: Vec<String>,
}

impl Outcome {
    fn add(&mut self, job: &Job<'_>, result: io::Result<(bool, String)>, seconds: u64) {
        let (success, output) = result.unwrap_or_else(|error| (false, error.to_string()));
        let passed = passed(&output);
        self.passed += passed;
        let title = format!("{} ({})", job.title, job.program.package);
        if !success {
            let mut stderr = io::stderr().lock();
            // Ignore an error: a closed stderr must not hide that tests failed.
            let _ = writeln!(stderr, "{output}");
            let _ = writeln!(stderr, "FAILED: {title}, {seconds} s");
            self.failed.push(title);
        } else if passed > 0 {
            eprintln!("{title}: {passed} passed, {seconds} s");
        }
    }
}

/// Returns the number of passed tests, as reported by the test harness.
fn passed(output: &str) -> u64 {
    let results = output.lines().filter_map(|line| line.strip_prefix("test result: "));
    let numbers = results.filter_map(|result| result.split(". ").nth(1)?.split(" passed").next()?.parse::<u64>().ok());
    numbers.sum()
}

/// Returns the names of the tests that have started but not finished, according to the output of the test harness.
fn running(output: &str) -> Vec<&str> {
    let mut running: Vec<&str> = Vec::new();
    let is_result = |text: &str| ["ok", "FAILED", "ignored"].iter().any(|result| text.starts_with(result));
    for line in output.lines() {
        let named = line.strip_prefix("test ");
        if let Some((name, rest)) = named.and_then(|line| line.split_once(" ... ")) {
            running.retain(|other| *other != name);
            if !is_result(rest) {
                running.push(name);
            }
        } else if let Some((name, _)) = named.and_then(|line| line.split_once(" has been running for over ")) {
            running.push(name);
        } else if is_result(line) {
            // With one thread, the result follows the name. The output of the test may be between the two.
            running.pop();
        }
    }
    running
}

/// Runs a program. Returns true if the program succeeded, and its output.
fn execute(job: &Job<'_>, environment: &[(&str, OsString)], limit: Duration) -> io::Result<(bool, String)> {
    // Use a file, because a leftover process of a failed test would keep a pipe open.
    let output = tempfile::NamedTempFile::new()?;
    let mut command = Command::new("env");
    if is_root() {
        // Use a new mount namespace: tests compare its mounts before and after.
        command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "env"]);
    }
    // Background processes of a script ignore Ctrl-C, and their children inherit this, so tests of Ctrl-C would never
    // finish.
    command.arg("--default-signal=INT,QUIT").arg(&job.program.executable).args(&job.arguments);
    command.current_dir(&job.program.directory).env("CARGO_MANIFEST_DIR", &job.program.directory);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.envs(job.warm_pool.map(|warm_pool| ("EXECUTOR_WARM_POOL", warm_pool)));
    let file = output.as_file();
    let mut child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file.try_clone()?).spawn()?;
    let status = processes::wait_or_end(&mut child, limit)?;
    let mut output = String::from_utf8_lossy(&fs::read(output.path())?).into_owned();
    if status.is_none() {
        let names = running(&output).join(", ");
        let names = if names.is_empty() { "unknown".to_owned() } else { names };
        output = format!("{output}\nended after the limit of {} s; tests still running: {names}", limit.as_secs());
    }
    Ok((status.is_some_and(|status| status.success()), output))
}

/// Runs the examples in doc comments.
pub(super) fn run_examples(workspace: &Workspace, filter: Option<&str>) -> anyhow::Result<bool> {
    step("Running the examples in doc comments");
    let mut cargo = dist::cargo_for_tests(workspace, &["test", "--workspace", "--doc", "--no-fail-fast", "--quiet"]);
    Ok(cargo.args(filter).status()?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_tests_are_counted() {
        let output = "running 2 tests\ntest result: ok. 2 passed; 0 failed; 0 ignored\n\
                      test result: FAILED. 13 passed; 1 failed; 0 ignored\n";
        assert_eq!(passed(output), 15);
        assert_eq!(passed("running 0 tests\n"), 0);
    }

    #[test]
    fn long_programs_alternate() {
        let program = |name: &str| Program {
            package: String::new(),
            name: name.to_owned(),
            executable: PathBuf::new(),
            directory: PathBuf::new(),
        };
        let programs = ["unit", "launch", "secrets", "unit"].map(program);
        let job = |(index, title): (usize, &str)| Job {
            program: &programs[index],
            title: title.to_owned(),
            arguments: Vec::new(),
            warm_pool: None,
        };
        let jobs = [(0, "u1"), (1, "l1"), (1, "l2"), (2, "s1"), (2, "s2"), (3, "u2"), (2, "s3")].map(job);
        let order: Vec<_> = alternate(jobs.iter().collect()).iter().map(|job| &*job.title).collect();
        assert_eq!(order, ["s1", "l1", "s2", "l2", "s3", "u1", "u2"]);
    }

    #[test]
    fn running_tests_are_named() {
        let several = "running 3 tests\ntest a::b ... ok\ntest c has been running for over 60 seconds\n\
                       test d has been running for over 60 seconds\ntest c ... FAILED\n";
        assert_eq!(running(several), ["d"]);
        let single = "test a ... ok\ntest b ... test b has been running for over 60 seconds\nok\ntest c ... ignored\n\
                      test d ... a message\n";
        assert_eq!(running(single), ["d"]);
        assert_eq!(running("test a ... "), ["a"]);
        assert!(running("running 0 tests\n").is_empty());
    }
}
