//! `executor-crash`: repeats a container's life cycle, and kills one of the executor's processes at each system call.
//!
//! Input is the product's binaries (in `target/dist/`, or the directory in EXECUTOR_DIST), the processes to kill, and
//! the calls at which to kill them. In a cycle, a client makes the calls Run, StreamLogs, UpdateFiles, Wait, GetOutputs
//! and Delete for a container with secret files, a secret in its environment, and exit code 7. With `--references`,
//! executord fetches these secrets from a directory, and fetches new values in place of UpdateFiles.
//!
//! In each cycle, ptrace stops one process at the beginning of its N-th system call, and the process is killed there.
//! Exited processes are restarted on the same directories, as by a supervisor. Then the conditions of [`evaluate`] must
//! hold. A sweep continues with N + 1 until two consecutive cycles have completed before the N-th call. The number of
//! calls differs slightly between cycles, mostly in executord's threads. Therefore a replay (`--target shim --at 412`)
//! stops at the same call in a single-threaded process, and at a nearby call in executord.
//!
//! With `--operation`, `agent-cli bundle` is killed instead ([`installations`]), at each of its calls that changes
//! state. With `--renewals`, processes are killed while a container's certificate is renewed ([`renewals`]). With
//! `--pods`, executor-cri is a third process, and the cycle is the life cycle of a Kubernetes pod ([`pods`]).
//!
//! Limits: processes are killed at the beginning of calls, not between two instructions, because the difference is not
//! visible outside a process. The machine itself is not stopped, so unsynced data survives.

mod calls;
mod cycle;
mod evaluate;
mod host_network;
mod installations;
mod pods;
mod renewals;
mod report;
mod shelf;
mod sweep;
mod tracer;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::ensure;
use clap::Parser;
use integration::interrupt;

use crate::installations::{Installations, Operation};
use crate::pods::{PodTarget, Pods};
use crate::renewals::{RenewTarget, Renewals};
use crate::report::{Report, Row};
use crate::sweep::{Cycles, Outcome, Target, TestNode};

#[derive(Parser)]
#[command(about = "Kill the executor's processes at every system call of a container's life cycle")]
struct Options {
    /// Process whose system calls are counted and that is killed at these calls [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_enum)]
    target: Vec<Target>,
    /// Kill only at this call, to replay a failure; the log of both processes is printed
    #[arg(long, value_name = "N", conflicts_with_all = ["every", "sample"])]
    at: Option<u64>,
    /// Kill only at every K-th call
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// Kill at this number of calls, spread evenly over the cycles of all targets
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "every")]
    sample: Option<u64>,
    /// Position of a sample's first call, to replay a sample [default: random]
    #[arg(long, value_name = "N")]
    offset: Option<u64>,
    /// Let the container run a tree of six steps with two secrets each
    #[arg(long)]
    tree: bool,
    /// Start each container from the warm pool
    #[arg(long)]
    warm_pool: bool,
    /// Start each container on a built-in network, with a published port
    #[arg(long)]
    network: bool,
    /// Use references to secrets in requests; executord fetches the secrets, and fetches new values instead of
    /// UpdateFiles
    #[arg(long, conflicts_with = "tree")]
    references: bool,
    /// Kill `agent-cli bundle` during these commands instead
    #[arg(long, value_name = "COMMAND", value_delimiter = ',', value_enum, conflicts_with_all = ["target", "tree", "warm_pool", "network", "references"])]
    operation: Vec<Operation>,
    /// Kill these processes while a container's certificate is renewed [without a value: all]
    #[arg(long, value_name = "PROCESS", value_delimiter = ',', value_enum, num_args = 0..=1, default_missing_value = "executord,signer,next-signer,launcher,shim", conflicts_with_all = ["target", "tree", "warm_pool", "network", "references", "operation"])]
    renewals: Vec<RenewTarget>,
    /// Kill these processes during the life cycle of a Kubernetes pod [without a value: all]
    #[arg(long, value_name = "PROCESS", value_delimiter = ',', value_enum, num_args = 0..=1, default_missing_value = "cri,executord,launcher", conflicts_with_all = ["target", "tree", "warm_pool", "network", "references", "operation", "renewals"])]
    pods: Vec<PodTarget>,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(report) => {
            if options.json {
                println!("{}", report.json());
            } else {
                print!("{}", report.table());
            }
            if report.leaks() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("executor-crash: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> anyhow::Result<Report> {
    ensure!(nix::unistd::geteuid().is_root(), "containers and ptrace require root: run the command as root");
    interrupt::watch()?;
    if !options.operation.is_empty() {
        return Run::over(Installations::new()?).all(&options.operation, options);
    }
    if !options.renewals.is_empty() {
        return Run::over(Renewals::new()?).all(&options.renewals, options);
    }
    if !options.pods.is_empty() {
        return Run::over(Pods::new()?).all(&options.pods, options);
    }
    let lacking = options.target.contains(&Target::Warm) && !options.warm_pool;
    ensure!(!lacking, "--target warm: requires --warm-pool");
    let targets = if options.target.is_empty() { Target::all(options.warm_pool) } else { options.target.clone() };
    let Options { tree, warm_pool, network, references, .. } = *options;
    let cycles = Cycles { tree, warm_pool, network, references };
    Run::over(TestNode::new(cycles)?).all(&targets, options)
}

/// Environment in which cycles are run, one after the other.
pub(crate) trait Node {
    /// Process or command that is killed.
    type Target: Copy;

    /// Returns the name of a target in the report.
    fn name(target: Self::Target) -> &'static str;

    /// Returns the options that repeat a cycle.
    fn replay(target: Self::Target, at: u64) -> String;

    /// Runs one cycle and kills the target at call `at`.
    fn kill_at(&mut self, target: Self::Target, at: u64) -> anyhow::Result<Outcome>;

    /// Returns the log of the node's processes.
    fn logged(&self) -> String;

    /// Recreates the node, so that leftovers of this cycle are not attributed to the next cycle.
    fn renew(&mut self) -> anyhow::Result<()>;
}

/// One run of the program: a node and the figures so far.
struct Run<N> {
    node: N,
    report: Report,
    terminal: bool,
}

impl<N: Node> Run<N> {
    fn over(node: N) -> Self {
        Self { node, report: Report::default(), terminal: std::io::stderr().is_terminal() }
    }

    /// Runs the sweeps or samples that the options select.
    fn all(mut self, targets: &[N::Target], options: &Options) -> anyhow::Result<Report> {
        match (options.at, options.sample) {
            (Some(at), _) => {
                for target in targets {
                    self.row(*target);
                    self.kill_at(*target, at)?;
                    eprintln!("{}", self.node.logged());
                }
            }
            (None, Some(sample)) => self.sample(targets, sample, options.offset)?,
            (None, None) => {
                for target in targets {
                    self.sweep(*target, options.every)?;
                }
            }
        }
        Ok(self.report)
    }

    /// Kills at every K-th call of a target's life cycle.
    fn sweep(&mut self, target: N::Target, every: u64) -> anyhow::Result<()> {
        self.row(target);
        let (mut at, mut silent) = (1, 0);
        while silent < 2 {
            silent = if self.kill_at(target, at)? { 0 } else { silent + 1 };
            at += every;
        }
        Ok(())
    }

    /// Runs about `sample` cycles, and each time kills a target at a different system call.
    fn sample(&mut self, targets: &[N::Target], sample: u64, offset: Option<u64>) -> anyhow::Result<()> {
        let mut cycles = Vec::new();
        for target in targets {
            // Count the calls without a kill. Repeat this if no call was counted, because the process to be traced may
            // have been created just before tracing started.
            for _ in 0..5 {
                self.kill_at(*target, u64::MAX)?;
                if self.row(*target).calls > 0 {
                    break;
                }
            }
            cycles.push((*target, self.row(*target).calls));
        }
        let all: u64 = cycles.iter().map(|(_, calls)| calls).sum();
        let step = (all / sample).max(1);
        let offset = offset.unwrap_or_else(|| u64::from(sweep::clock())) % step;
        eprintln!(
            "killing at one in {step} of {all} calls, from call {offset} on (--sample {sample} --offset {offset})"
        );
        let mut before = 0;
        for (target, calls) in cycles {
            let first = (step - (before + step - offset) % step) % step;
            for at in (first..calls).step_by(step as usize) {
                self.kill_at(target, at + 1)?;
            }
            before += calls;
        }
        Ok(())
    }

    fn row(&mut self, target: N::Target) -> &mut Row {
        self.report.row(N::name(target))
    }

    /// Runs one cycle with a kill. Returns false if the cycle completed before call `at`.
    fn kill_at(&mut self, target: N::Target, at: u64) -> anyhow::Result<bool> {
        let begun = Instant::now();
        let outcome = self.node.kill_at(target, at);
        // After an interrupt, errors of the cycle or of the daemons are not findings.
        interrupt::check()?;
        let outcome = outcome?;
        let killed = outcome.kill.is_some();
        let name = N::name(target);
        if !outcome.verdict.wrong.is_empty() {
            let log = self.node.logged();
            self.node.renew()?;
            let place = outcome.kill.as_ref().map_or_else(
                || format!("{name}, without a kill"),
                |kill| format!("{name}, call {} ({}), {}", kill.at, kill.call, kill.phase),
            );
            let failure = format!("{place}: {}", outcome.verdict.wrong.join("; "));
            self.clear();
            eprintln!("{failure}\n  replay: {}\n{}", N::replay(target, at), report::tail(&log));
            self.report.failures.push(failure);
        }
        let row = self.row(target);
        row.add(&outcome, begun.elapsed());
        let line = format!("{name} {at}: {} kills, {} leaks", row.kills, row.wrong);
        if self.terminal {
            eprint!("\r\x1b[K{line}");
            if !killed {
                self.clear();
            }
        }
        Ok(killed)
    }

    fn clear(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}
