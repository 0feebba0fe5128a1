//! `executor-bench`: time and memory of the executor, compared with crun, runc and the bare system calls.
//!
//! Input is the product's binaries (`--dist`), a full seccomp profile (`--seccomp`) and the installed ones of crun and
//! runc. Output is a table for people and, with `--json`, the same numbers for programs.
//!
//! Method:
//! - All contestants run in one process's measurement, interleaved: in each round every contestant runs once, in an
//!   order shuffled anew, so that other load of the machine affects all alike. Compare ratios of medians of one run, not
//!   milliseconds of two.
//! - Rootfs, static `true`, namespaces, limits, capabilities and user are the same. The executor's containers also have
//!   a user namespace and an id-mapped root.
//! - A runtime is timed over `create`, `start`, the exit (by pidfd) and `delete`, as a manager would drive it. The
//!   executor is timed from the client's call to the arrival of the exit event, on a connection that stays open.
//! - All run in one private mount namespace, from which the cgroup2 mount of a hybrid host is removed: crun 1.8 refuses
//!   such a host otherwise.

mod client;
mod daemon;
mod failures;
mod floor;
mod host;
mod images;
mod latency;
mod memory;
mod oci;
mod redaction;
mod report;
mod rootfs;
mod runtime;
mod seccomp;
mod stats;
mod throughput;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use clap::{Parser, ValueEnum};

use crate::client::Client;
use crate::daemon::Daemon;
use crate::host::{Host, RuntimeDirectory};
use crate::images::Images;
use crate::report::Report;
use crate::rootfs::Rootfs;
use crate::runtime::Runtimes;

#[derive(Parser)]
#[command(about = "Measure the executor beside crun, runc and the raw floor")]
struct Options {
    /// Directory of executord, executor-launcher and agent-cli
    #[arg(long, value_name = "DIR", env = "EXECUTOR_DIST")]
    dist: PathBuf,
    /// Number of runs of each contestant
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// A full seccomp profile in Docker's and podman's form
    #[arg(long, value_name = "FILE")]
    seccomp: Option<PathBuf>,
    /// Also write the numbers to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only these parts
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// Only contestants whose name contains one of these
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    contestants: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// One container at a time, interleaved
    Latency,
    /// Containers per second, several at once
    Throughput,
    /// Memory of idle containers
    Memory,
    /// Many runs, counting failures
    Failures,
    /// Starts from stored images, compared with `dir:` of the same tree
    Images,
    /// Speed of masking output; runs no container
    Redaction,
}

impl Options {
    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// Returns whether any part runs containers.
    fn wants_containers(&self) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| *part != Part::Redaction)
    }

    fn wants_contestant(&self, name: &str) -> bool {
        self.contestants.is_empty() || self.contestants.iter().any(|wanted| name.contains(wanted.as_str()))
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("executor-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> anyhow::Result<ExitCode> {
    ensure!(rustix::process::geteuid().is_root(), "namespaces and cgroups are made: run as root");
    // Before any thread: a thread would keep the old mount namespace.
    let host = Host::prepare()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting tokio")?;
    runtime.block_on(measure(options, &host))
}

async fn measure(options: &Options, host: &Host) -> anyhow::Result<ExitCode> {
    host.watch_for_interrupt();
    let scratch = tempfile::Builder::new().prefix("executor-bench.").tempdir()?;
    let run = RuntimeDirectory::mount(scratch.path())?;
    let rootfs = Rootfs::make(scratch.path())?;
    let profile = options.seccomp.as_deref().map(seccomp::load).transpose()?;
    let runtimes = Runtimes::find(run.path(), &rootfs, profile.as_ref(), host)?;
    let ours = options.wants_containers() && options.wants_contestant("executor");
    let images = if ours && options.wants(Part::Images) { Some(Images::make(&rootfs)?) } else { None };
    let mut daemon = None;
    if ours {
        daemon = Some(Daemon::start(&options.dist, scratch.path(), run.path(), &rootfs).await?);
    }
    let mut report = Report::new(options.runs, host, &runtimes, profile.is_some());
    report.head();
    let outcome = parts(options, host, &rootfs, &runtimes, daemon.as_ref(), images.as_ref(), &mut report).await;
    if let Some((mut daemon, client)) = daemon {
        drop(client);
        daemon.end()?;
    }
    outcome?;
    if let Some(path) = &options.json {
        std::fs::write(path, report.json()).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(if report.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn parts(
    options: &Options,
    host: &Host,
    rootfs: &Rootfs,
    runtimes: &Runtimes,
    daemon: Option<&(Daemon, Client)>,
    images: Option<&Images>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let client = daemon.map(|(_, client)| client);
    if options.wants(Part::Latency) {
        report.latency(&latency::measure(options, host, rootfs, runtimes, client).await?);
    }
    if options.wants(Part::Throughput) {
        report.throughput(&throughput::measure(options, host, runtimes, client).await?);
    }
    if let Some((daemon, client)) = daemon {
        if options.wants(Part::Memory) {
            report.memory(&memory::measure(host, daemon.pid(), client).await?);
        }
        if let Some(images) = images {
            report.images(&images::measure(options, host, images, client).await?);
        }
        if options.wants(Part::Failures) {
            report.failures(&failures::measure(host, client).await?);
        }
    }
    if options.wants(Part::Redaction) {
        report.redaction(&redaction::measure(host).await?);
    }
    Ok(())
}
