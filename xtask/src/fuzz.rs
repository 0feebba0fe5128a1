//! `cargo xtask fuzz`: searches with LLVM's libFuzzer for inputs that violate a rule, on a stable toolchain.
//!
//! Unlike `cargo fuzz`, this command needs no nightly compiler: any rustc can run the LLVM pass that adds the
//! instrumentation. Sanitizers would find nothing more in safe Rust. The build has its own target directory, because
//! its flags would invalidate all other builds.
//!
//! New inputs are collected below `target/`. `--minimise` reduces them to the smallest set with the same coverage, in
//! `fuzz/corpus/`. An input that causes a finding is written to `fuzz/regressions/`, and the ordinary tests run it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, bail};

use crate::needs;
use crate::workspace::{self, Workspace, step};

/// Names of the targets in `fuzz/src/lib.rs`, in execution order.
const TARGETS: [&str; 12] = [
    "request", "paths", "users", "protocol", "logline", "redactor", "layer", "image", "wire", "catalog", "range",
    "kube",
];
/// Maximum size of an input, in bytes. Small, because the corpus is stored in the repository.
const INPUT_MAX: usize = 4096;
/// Maximum number of files in a target's corpus.
const CORPUS_MAX: usize = 60;
/// The flags of `cargo fuzz` without the sanitizers. They count edges and trace the operands of comparisons.
const FLAGS: [&str; 8] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    // Folded branches would count as a single edge.
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
    "-Cpanic=abort",
    "--cfg=fuzzing",
];

/// The targets to run, and their duration.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Targets to run [default: all]
    #[arg(value_parser = TARGETS)]
    targets: Vec<String>,
    /// Duration per target, in seconds
    #[arg(long, value_name = "N", default_value_t = 600)]
    seconds: u32,
    /// Number of processes per target
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    jobs: u32,
    /// Afterwards, replace each target's stored corpus with the smallest set with the same coverage
    #[arg(long)]
    minimise: bool,
}

struct Figures {
    target: String,
    executions: String,
    coverage: String,
    corpus: usize,
}

/// Builds and runs the targets, and prints a table. Fails at the first finding.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    needs::require(&needs::FUZZ)?;
    let program = build(workspace)?;
    let named = || options.targets.iter().map(String::as_str);
    let targets: Vec<&str> = if options.targets.is_empty() { TARGETS.to_vec() } else { named().collect() };
    let mut figures = Vec::new();
    for target in targets {
        let engine = Engine::new(workspace, &program, target)?;
        figures.push(engine.search(options)?);
        if options.minimise {
            engine.minimise()?;
        }
    }
    println!("{:<10} {:>12} {:>8} {:>8}", "target", "executions", "edges", "inputs");
    for Figures { target, executions, coverage, corpus } in figures {
        println!("{target:<10} {executions:>12} {coverage:>8} {corpus:>8}");
    }
    Ok(ExitCode::SUCCESS)
}

fn build(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    step("Building the targets with instrumentation");
    let target_dir = workspace.target.join("fuzz-build");
    let mut cargo = workspace.cargo(["build", "--locked", "--profile=fuzz", "-p", "executor-fuzz"]);
    cargo.args(["--features=libfuzzer", "--bin=executor-fuzz"]);
    // With an explicit target, the flags do not apply to build scripts and macros, which are not linked to the engine.
    cargo.arg(format!("--target={}", workspace.host)).arg("--target-dir").arg(&target_dir);
    cargo.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f"));
    workspace::run(&mut cargo)?;
    Ok(target_dir.join(&workspace.host).join("fuzz/executor-fuzz"))
}

/// The fuzzing engine for one target.
struct Engine<'a> {
    program: &'a Path,
    target: &'a str,
    /// Directory of inputs with new coverage that were found on this machine.
    found: PathBuf,
    /// Directory of the stored corpus in the repository.
    stored: PathBuf,
    /// Directory of inputs that are or were findings.
    regressions: PathBuf,
}

impl<'a> Engine<'a> {
    fn new(workspace: &Workspace, program: &'a Path, target: &'a str) -> anyhow::Result<Self> {
        let home = workspace.root.join("fuzz");
        let engine = Self {
            program,
            target,
            found: workspace.target.join("fuzz-corpus").join(target),
            stored: home.join("corpus").join(target),
            regressions: home.join("regressions").join(target),
        };
        for dir in [&engine.found, &engine.stored, &engine.regressions] {
            fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        Ok(engine)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        command.env("EXECUTOR_FUZZ_TARGET", self.target).stdin(Stdio::null());
        command.args([format!("-max_len={INPUT_MAX}"), "-timeout=20".into(), "-rss_limit_mb=2048".into()]);
        command
    }

    fn search(&self, options: &Options) -> anyhow::Result<Figures> {
        step(&format!("Fuzzing {} for {} s", self.target, options.seconds));
        let log = self.found.with_extension("log");
        let mut command = self.command();
        command.arg(format!("-max_total_time={}", options.seconds)).arg("-print_final_stats=1");
        command.arg(format!("-artifact_prefix={}/", self.regressions.display()));
        if options.jobs > 1 {
            command.arg(format!("-fork={}", options.jobs));
        }
        command.args([&self.found, &self.stored, &self.regressions]);
        command.stderr(fs::File::create(&log).with_context(|| format!("cannot create {}", log.display()))?);
        let status = command.status().with_context(|| format!("cannot run {}", self.program.display()))?;
        let reported = fs::read(&log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())?;
        if !status.success() {
            let tail: Vec<&str> = reported.lines().rev().take(40).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            bail!("target {} failed; the input is in {}\n{}", self.target, self.regressions.display(), tail.join("\n"));
        }
        Ok(Figures {
            target: self.target.to_owned(),
            executions: last_number(&reported, "stat::number_of_executed_units:").unwrap_or_else(|| "?".into()),
            coverage: last_number(&reported, " cov:").unwrap_or_else(|| "?".into()),
            corpus: fs::read_dir(&self.found)?.count(),
        })
    }

    /// Minimises the stored corpus. Edges are counted without their frequency: with frequencies, the set would be ten
    /// times as large.
    fn minimise(&self) -> anyhow::Result<()> {
        step(&format!("Minimising the corpus of {}", self.target));
        let least = self.found.with_extension("least");
        let _ = fs::remove_dir_all(&least);
        fs::create_dir_all(&least)?;
        let mut command = self.command();
        command.args(["-set_cover_merge=1", "-use_counters=0"]).args([&least, &self.found, &self.stored]);
        workspace::output(&mut command)?;
        let mut kept: Vec<PathBuf> = fs::read_dir(&least)?.flatten().map(|entry| entry.path()).collect();
        // If there are too many inputs, remove the smallest. They cover the least, and the engine finds them again
        // quickly.
        kept.sort_by_key(|path| std::cmp::Reverse(fs::metadata(path).map_or(0, |meta| meta.len())));
        if kept.len() > CORPUS_MAX {
            eprintln!("  {} of {} inputs are retained", CORPUS_MAX, kept.len());
            kept.truncate(CORPUS_MAX);
        }
        fs::remove_dir_all(&self.stored)?;
        fs::create_dir_all(&self.stored)?;
        for path in kept {
            let name = path.file_name().context("the path has no file name")?;
            fs::copy(&path, self.stored.join(name))?;
        }
        Ok(())
    }
}

/// Returns the number after the last occurrence of a word.
fn last_number(reported: &str, word: &str) -> Option<String> {
    let (_, behind) = reported.rsplit_once(word)?;
    behind.split_whitespace().next().map(str::to_owned)
}
