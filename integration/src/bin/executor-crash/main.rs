//! `executor-crash`: one container's life, again and again, with one of our processes killed at each system call of it.
//!
//! In go the product's binaries (of `target/dist/`, or of the directory that EXECUTOR_DIST names) and whom to kill where. A life is Run, the output, Wait and Delete of a
//! container with secret files, a secret in its environment and exit code 7, by way of executord's interface. In each
//! life one process is stopped by ptrace at the beginning of its N-th system call and killed there; what a supervisor
//! would start again is started again on the same directories; and then the rules of [`judge`] must hold. A sweep goes
//! on with N + 1 until two lives in a row have ended before the N-th call. The number of calls differs a little from
//! life to life (executord's threads most of all), so that a replay (`--target shim --at 412`) hits the same call in
//! a process of one thread, and one nearby in executord.
//!
//! Limits: processes are killed at the beginning of calls, not between two instructions: nothing outside a process
//! can tell the difference. The machine itself is not stopped, so that what is not synced is kept.

mod calls;
mod judge;
mod life;
mod report;
mod sweep;
mod tracer;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::ensure;
use clap::Parser;

use crate::report::{Report, Row};
use crate::sweep::{Range, Target};

#[derive(Parser)]
#[command(about = "Kill the executor's processes at every system call of a container's life")]
struct Options {
    /// Whose system calls, and who dies at them [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_enum)]
    target: Vec<Target>,
    /// Only at this call, to replay a failure; the log of both processes is printed
    #[arg(long, value_name = "N", conflicts_with_all = ["every", "sample"])]
    at: Option<u64>,
    /// At each K-th call only
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// At so many calls, spread evenly over the lives of all targets
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "every")]
    sample: Option<u64>,
    /// Where the first call of a sample lies, to replay one [default: random]
    #[arg(long, value_name = "N")]
    offset: Option<u64>,
    /// Print the figures as JSON
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
    ensure!(nix::unistd::geteuid().is_root(), "containers and ptrace need root");
    let targets = if options.target.is_empty() { Target::ALL.to_vec() } else { options.target.clone() };
    let mut shots =
        Shots { range: Range::new()?, report: Report::default(), terminal: std::io::stderr().is_terminal() };
    match (options.at, options.sample) {
        (Some(at), _) => {
            for target in targets {
                shots.row(target);
                shots.strike(target, at)?;
                eprintln!("{}", shots.range.logged());
            }
        }
        (None, Some(sample)) => shots.sample(&targets, sample, options.offset)?,
        (None, None) => {
            for target in targets {
                shots.sweep(target, options.every)?;
            }
        }
    }
    Ok(shots.report)
}

/// A run under way.
struct Shots {
    range: Range,
    report: Report,
    terminal: bool,
}

impl Shots {
    /// Every K-th call of a target's life.
    fn sweep(&mut self, target: Target, every: u64) -> anyhow::Result<()> {
        self.row(target);
        let (mut at, mut silent) = (1, 0);
        while silent < 2 {
            silent = if self.strike(target, at)? { 0 } else { silent + 1 };
            at += every;
        }
        Ok(())
    }

    /// So many calls of all targets' lives.
    fn sample(&mut self, targets: &[Target], sample: u64, offset: Option<u64>) -> anyhow::Result<()> {
        let mut lives = Vec::new();
        for target in targets {
            self.row(*target);
            self.strike(*target, u64::MAX)?; // counts
            lives.push((*target, self.row(*target).calls));
        }
        let all: u64 = lives.iter().map(|(_, calls)| calls).sum();
        let step = (all / sample).max(1);
        let offset = offset.unwrap_or_else(|| u64::from(sweep::clock())) % step;
        eprintln!("every {step}. of {all} calls, from {offset} on (--sample {sample} --offset {offset})");
        let mut before = 0;
        for (target, calls) in lives {
            let first = (step - (before + step - offset) % step) % step;
            for at in (first..calls).step_by(step as usize) {
                self.strike(target, at + 1)?;
            }
            before += calls;
        }
        Ok(())
    }

    fn row(&mut self, target: Target) -> &mut Row {
        self.report.row(target.name())
    }

    /// One life with a kill. Tells whether there was one: false where the life was over before.
    fn strike(&mut self, target: Target, at: u64) -> anyhow::Result<bool> {
        let begun = Instant::now();
        let outcome = self.range.strike(target, at)?;
        let killed = outcome.kill.is_some();
        if !outcome.verdict.wrong.is_empty() {
            // What this one left must not be laid to the next.
            let log = self.range.logged();
            self.range = Range::new()?;
            let place = outcome.kill.as_ref().map_or_else(
                || format!("{}, without a kill", target.name()),
                |kill| format!("{}, call {} ({}), {}", target.name(), kill.at, kill.call, kill.phase),
            );
            let failure = format!("{place}: {}", outcome.verdict.wrong.join("; "));
            self.clear();
            eprintln!("{failure}\n  replay: --target {} --at {at}\n{}", target.name(), report::tail(&log));
            self.report.failures.push(failure);
        }
        let row = self.row(target);
        row.add(&outcome, begun.elapsed());
        let line = format!("{} {at}: {} kills, {} leaks", target.name(), row.kills, row.wrong);
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
