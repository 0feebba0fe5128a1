//! `executor-bench`: time and memory of the executor, compared with bubblewrap, crun, runc and the bare system calls.
//!
//! Input is the product's binaries (`--dist`), a full seccomp profile (`--seccomp`) and the installed versions of
//! bubblewrap, crun and runc. Output is a table for people and, with `--json`, the same numbers for programs.
//!
//! Method:
//! - All contestants are measured in one process and interleaved: in each round every contestant runs once, in a newly
//!   shuffled order. Other load of the machine then affects all contestants alike. Compare ratios of medians from one
//!   run, not milliseconds from two runs.
//! - Rootfs, static `true`, namespaces, limits, capabilities and user are the same. The executor's containers also have
//!   a user namespace and an id-mapped root.
//! - A runtime is timed over `create`, `start`, the exit (by pidfd) and `delete`, as a container manager calls it. The
//!   executor is timed from the client's call to the arrival of the exit event, on a persistent connection.
//! - CPU time is the CPU time of the whole machine, including kernel threads, minus the load of the idle machine just
//!   before.
//! - All contestants run in one private mount namespace. The cgroup2 mount of a hybrid host is removed there, because
//!   crun 1.8 refuses such a host.

mod bubblewrap;
mod burst;
mod client;
mod daemon;
mod failures;
mod floor;
mod host;
mod images;
mod latency;
mod many;
mod memory;
mod oci;
mod peer;
mod podman;
mod processes;
mod processor;
mod profile;
mod redaction;
mod report;
mod rootfs;
mod roots;
mod run;
mod runtime;
mod seccomp;
mod settings;
mod stage;
mod stats;
mod strangers;
mod throughput;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use clap::{Parser, ValueEnum};

use crate::host::{Host, RuntimeDirectory};
use crate::processor::IdleLoad;
use crate::report::Report;
use crate::settings::Settings;
use crate::stage::Stage;

/// Exit status if the machine was not idle during a part.
const NOT_AT_REST: u8 = 3;

#[derive(Parser)]
#[command(about = "Measure the executor in comparison with bubblewrap, crun, runc and the bare system calls")]
struct Options {
    /// Directory of executord, executor-launcher and agent-cli
    #[arg(long, value_name = "DIR", env = "EXECUTOR_DIST")]
    dist: PathBuf,
    /// Number of runs of each contestant
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Full seccomp profile in the format of Docker and podman
    #[arg(long, value_name = "FILE")]
    seccomp: Option<PathBuf>,
    /// Also write the numbers to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run only these parts
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// Run only programs whose name contains one of the given texts
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    contestants: Vec<String>,
    /// Measure one more executord with these additional configuration keys; `cold`, without a warm pool, is always
    /// included
    #[arg(long, value_name = "NAME=TOML")]
    settings: Vec<Settings>,
    /// Number of containers in each measurement of the part `throughput`, in steps of 16
    #[arg(long, value_name = "N", default_value_t = 160, value_parser = clap::value_parser!(u32).range(16..=100_000))]
    lives: u32,
    /// Number of containers of a burst
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=250))]
    burst: u32,
    /// Number of containers of the part `many`
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=4000))]
    many: u32,
    /// Also record each part with perf, and write text reports
    #[arg(long, value_name = "DIR")]
    profile: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// One container at a time, interleaved
    Latency,
    /// Containers per second, several started concurrently
    Throughput,
    /// Many containers requested at the same moment
    Burst,
    /// Memory of idle containers
    Memory,
    /// A thousand concurrent containers: start, memory, deletion, and leftovers
    Many,
    /// Many runs, counting failures
    Failures,
    /// Starts from stored images, compared with `dir:` of the same tree
    Images,
    /// Speed of masking output; runs no container
    Redaction,
    /// Calls over TLS while unauthenticated clients make 10,000 handshakes a minute
    Strangers,
}

impl Options {
    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// Returns true if any part runs containers of the executor.
    fn wants_executor(&self) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| *part != Part::Redaction)
    }

    /// Returns true if a selected part has a contestant for each kind of container.
    fn wants_shapes(&self) -> bool {
        self.wants(Part::Latency) || self.wants(Part::Throughput)
    }

    /// Returns the maximum number of simultaneous containers, with a margin.
    fn most_containers(&self) -> u32 {
        self.burst.max(self.many) + 100
    }

    fn wants_contestant(&self, name: &str) -> bool {
        self.contestants.is_empty() || self.contestants.iter().any(|wanted| name.contains(wanted.as_str()))
    }
}

fn main() -> ExitCode {
    let mut options = Options::parse();
    options.settings.insert(0, Settings::cold());
    match run(&options) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("executor-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> anyhow::Result<ExitCode> {
    ensure!(rustix::process::geteuid().is_root(), "the benchmark requires root: run the command as root");
    // Do this before any thread is started, because threads would stay in the old mount namespace.
    let host = Host::prepare()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start tokio")?;
    runtime.block_on(measure(options, &host))
}

async fn measure(options: &Options, host: &Host) -> anyhow::Result<ExitCode> {
    settings::check_names(&options.settings)?;
    integration::interrupt::watch()?;
    let scratch = tempfile::Builder::new().prefix("executor-bench.").tempdir()?;
    let run = RuntimeDirectory::mount(scratch.path())?;
    let profile = options.seccomp.as_deref().map(seccomp::load).transpose()?;
    let stage = Stage::set_up(options, host, scratch.path(), run.path(), profile.as_ref()).await?;
    let mut report = Report::new(options.runs, &stage, profile.is_some());
    report.head();
    let outcome = parts(options, &stage, &mut report).await;
    stage.end()?;
    outcome?;
    if let Some(path) = &options.json {
        std::fs::write(path, report.json()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if report.failed() {
        return Ok(ExitCode::FAILURE);
    }
    if report.disturbed().is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("executor-bench: the machine was not idle during: {}", report.disturbed().join(", "));
    Ok(ExitCode::from(NOT_AT_REST))
}

/// Measures the selected parts in order.
async fn parts(options: &Options, stage: &Stage<'_>, report: &mut Report) -> anyhow::Result<()> {
    for part in Part::value_variants().iter().filter(|part| options.wants(**part)) {
        let named = part.to_possible_value();
        let recording = stage.profiler.start(named.as_ref().map_or("part", |value| value.get_name())).await?;
        one(options, stage, *part, report).await?;
        recording.end()?;
    }
    Ok(())
}

async fn one(options: &Options, stage: &Stage<'_>, part: Part, report: &mut Report) -> anyhow::Result<()> {
    match part {
        Part::Latency => report.latency(&latency::measure(options, stage).await?),
        Part::Throughput => report.throughput(&throughput::measure(options, stage).await?),
        Part::Burst => report.burst(&burst::measure(options, stage).await?),
        Part::Redaction => {
            let mut rest = IdleLoad::wait().await?;
            let speeds = redaction::measure()?;
            rest.sample().await?;
            report.redaction(&speeds, rest);
        }
        Part::Strangers => {
            let mut rest = IdleLoad::wait().await?;
            let strangers = strangers::measure().await?;
            rest.sample().await?;
            report.strangers(&strangers, rest);
        }
        Part::Memory => {
            for executor in &stage.executors {
                report.memory(&memory::measure(executor).await?);
            }
        }
        Part::Many => {
            for executor in &stage.executors {
                report.many(&many::measure(options, executor).await?);
            }
        }
        Part::Failures => {
            for executor in &stage.executors {
                report.failures(&failures::measure(executor).await?);
            }
        }
        Part::Images => {
            let Some(images) = &stage.images else { return Ok(()) };
            for executor in &stage.executors {
                let latencies = roots::measure(options, images, executor).await?;
                report.images(&executor.name, &latencies);
            }
        }
    }
    Ok(())
}
