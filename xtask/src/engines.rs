//! `cargo xtask engines-test`: runs critest, the conformance tests of the Kubernetes runtime interface (CRI). `cargo
//! xtask kubelet-test` runs a kubelet ([`kubelet`]), and `cargo xtask cluster` a cluster ([`cluster`]).
//!
//! critest tests executor-cri, and Debian's containerd for comparison; docs/cri.md has the results. All processes run
//! in their own namespaces ([`room`]). The images that critest pulls are built and served locally ([`supplies`]).

mod benchmark;
mod cases;
pub(crate) mod cluster;
mod containerd;
mod executor;
mod guide;
pub(crate) mod kubelet;
mod node;
mod report;
mod room;
mod site;
mod supplies;
mod usage;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};

pub(crate) use self::cases::CaseOptions;
use self::report::Report;
use self::room::Room;
pub(crate) use self::supplies::program;
use self::supplies::{Registry, Supplies};
use crate::needs;
use crate::workspace::{Workspace, is_root, run, step};

/// Working directory of critest.
const CRITEST: &str = "root/critest";
/// Number of specs that critest 1.37.0 selects on Linux.
const SELECTED: usize = 137;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run only specs whose name matches this regular expression
    #[arg(long, value_name = "REGEX")]
    focus: Option<String>,
    /// Skip specs whose name matches this regular expression
    #[arg(long, value_name = "REGEX")]
    skip: Option<String>,
    /// Build critest and compare the number of its specs, but run none
    #[arg(long, conflicts_with_all = ["focus", "skip", "json"])]
    list: bool,
    /// Print only the results on standard output, as JSON
    #[arg(long)]
    json: bool,
    /// Copy the logs of critest, the runtimes and the registry to this directory
    #[arg(long, value_name = "DIRECTORY")]
    logs: Option<PathBuf>,
    /// Test only this runtime
    #[arg(long, value_enum)]
    runtime: Option<Kind>,
    /// Compare times and memory of both runtimes instead, in this number of rounds
    #[arg(
        long,
        value_name = "ROUNDS",
        num_args = 0..=1,
        default_missing_value = "3",
        value_parser = clap::value_parser!(u16).range(1..=100),
        conflicts_with_all = ["focus", "skip", "list", "runtime"]
    )]
    benchmark: Option<u16>,
    /// Use the programs of the product in this directory instead of building them
    #[arg(long, value_name = "DIRECTORY")]
    programs: Option<PathBuf>,
}

/// Container runtimes that can be tested.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    Containerd,
    Executor,
}

/// A running container runtime.
struct Runtime {
    /// Program and version.
    name: String,
    socket: PathBuf,
}

/// Builds critest and runs it against the selected runtimes. Fails if a run of all specs does not have [`SELECTED`]
/// specs.
pub(crate) fn run_command(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    needs::require(&needs::ENGINES)?;
    if options.list {
        let critest = supplies::critest(workspace)?;
        let specs = report::selected(&critest)?;
        println!("critest selects {specs} specs");
        ensure!(specs == SELECTED, "critest selects {specs} specs, not {SELECTED} as in docs/cri.md");
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(is_root(), "the container runtimes require root: run the command as root");
    needs::require(&needs::ENGINES_RUN)?;
    let critest = supplies::critest(workspace)?;
    let supplies = Supplies::prepare(workspace)?;
    if options.benchmark.is_none() && options.focus.is_none() && options.runtime != Some(Kind::Containerd) {
        step("Testing executor-streams with client-go");
        let mut command = workspace.cargo(["test", "--workspace", "--locked", "--test", "clients"]);
        command.args(["--features", "executor-streams/client-go"]);
        run(command.env("EXECUTOR_STREAMS_CLIENT", supplies.streams()))?;
    }
    let directory = tempfile::Builder::new().prefix("executor-engines-").tempdir()?;
    if let Some(rounds) = options.benchmark {
        return benchmark(workspace, options, (&supplies, &critest), directory.path(), rounds.into());
    }
    let stage = Stage::prepare(&supplies, &critest, directory.path())?;
    let mut reports = Vec::new();
    for kind in [Kind::Containerd, Kind::Executor] {
        if options.runtime.is_none_or(|only| only == kind) {
            let report = run_on(workspace, kind, options, &stage);
            if let Some(logs) = &options.logs {
                copy_logs(&stage.directory, logs)?;
            }
            reports.push(report?);
        }
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    } else {
        reports.iter().for_each(|report| println!("{report}"));
    }
    let is_whole = options.focus.is_none() && options.skip.is_none();
    let differs = |report: &Report| report.specs.len() != SELECTED;
    Ok(if is_whole && reports.iter().any(differs) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Namespaces in which a runtime runs, with a registry that serves the images.
struct Stage<'a> {
    supplies: &'a Supplies,
    critest: &'a Path,
    directory: PathBuf,
    registry: Registry,
    room: Room,
}

impl<'a> Stage<'a> {
    fn prepare(supplies: &'a Supplies, critest: &'a Path, directory: &Path) -> anyhow::Result<Self> {
        // Users of the host must not reach set-user-id programs that a container leaves in a mounted directory.
        let work = directory.join(CRITEST);
        std::fs::create_dir_all(&work)?;
        room::make_private(work.parent().unwrap_or(&work))?;
        let room = Room::open(directory, room::EMPTY_DIRECTORIES, executor::CGROUP)?;
        step("Serving the images of critest");
        let registry = supplies.serve(&room, directory, &[])?;
        Ok(Self { supplies, critest, directory: directory.to_owned(), registry, room })
    }

    /// Returns the working directory of critest.
    fn work(&self) -> PathBuf {
        self.directory.join(CRITEST)
    }

    fn start(&self, workspace: &Workspace, kind: Kind, options: &Options) -> anyhow::Result<Runtime> {
        if kind == Kind::Containerd {
            step("Starting containerd");
            return containerd::start(&self.room, &self.directory, &self.registry.address);
        }
        let programs = cases::programs(workspace, options.programs.as_deref())?;
        step("Starting executord and executor-cri");
        executor::start(&self.room, &self.directory, &programs, &self.work(), &self.registry.address)
    }
}

/// Starts a runtime and runs critest against it.
fn run_on(workspace: &Workspace, kind: Kind, options: &Options, stage: &Stage<'_>) -> anyhow::Result<Report> {
    let runtime = stage.start(workspace, kind, options)?;
    if kind == Kind::Executor {
        step("Running the commands of the guide for crictl");
        guide::run(workspace, stage.supplies, &stage.room, &stage.work(), &runtime)?;
    }
    step(&format!("Running critest against {} (2 minutes for all specs)", runtime.name));
    critest(options, stage, &runtime)
}

/// Starts both runtimes, each in its own namespaces, and compares their times and memory. Fails if the machine was
/// busy.
fn benchmark(
    workspace: &Workspace,
    options: &Options,
    (supplies, critest): (&Supplies, &Path),
    directory: &Path,
    rounds: usize,
) -> anyhow::Result<ExitCode> {
    let mut contestants = Vec::new();
    // Start with the executor: the first room that is dropped removes the cgroups of executord.
    for (name, kind) in [("executor", Kind::Executor), ("containerd", Kind::Containerd)] {
        let stage = Stage::prepare(supplies, critest, &directory.join(name))?;
        let runtime = stage.start(workspace, kind, options)?;
        contestants.push((stage, runtime));
    }
    let figures = benchmark::measure(&contestants, rounds);
    if let Some(logs) = &options.logs {
        for (stage, _) in &contestants {
            copy_logs(&stage.directory, logs)?;
        }
    }
    let figures = figures?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&figures)?);
    } else {
        println!("{figures}");
    }
    Ok(if figures.are_valid() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Copies all logs of a run.
fn copy_logs(directory: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    for from in [directory, &directory.join("executor")] {
        for entry in std::fs::read_dir(from).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "log") {
                std::fs::copy(entry.path(), to.join(entry.file_name()))?;
            }
        }
    }
    Ok(())
}

/// Runs critest against a runtime.
fn critest(options: &Options, stage: &Stage<'_>, runtime: &Runtime) -> anyhow::Result<Report> {
    let directory = &stage.directory;
    let (json, list) = (directory.join("report.json"), directory.join("images.yaml"));
    let images = "defaultTestContainerImage: registry.k8s.io/e2e-test-images/busybox:1.29-2\n\
                  webServerTestImage: registry.k8s.io/e2e-test-images/nginx:1.14-2\n";
    std::fs::write(&list, images)?;
    let endpoint = format!("unix://{}", runtime.socket.display());
    let mut command = stage.room.command(stage.critest);
    command.args(["-runtime-endpoint", &endpoint, "-image-endpoint", &endpoint, "-ginkgo.no-color"]);
    command.arg("-test-images-file").arg(&list).arg("-ginkgo.json-report").arg(&json);
    for (flag, value) in [("-ginkgo.focus", &options.focus), ("-ginkgo.skip", &options.skip)] {
        command.args(value.iter().flat_map(|value| [flag, value]));
    }
    let log = std::fs::File::create(directory.join("critest.log"))?;
    // critest writes reports below its working directory, and makes the files that it mounts in the temporary
    // directory.
    let work = stage.work();
    command.current_dir(&work).env("TMPDIR", &work).stdout(log.try_clone()?).stderr(log);
    // Ignore the exit status: failed specs are in the report, and without a report the next step fails.
    let _ = run(&mut command);
    let text = std::fs::read(&json).with_context(|| {
        format!("critest wrote no report; use --logs to copy {}", directory.join("critest.log").display())
    })?;
    Report::parse(runtime.name.clone(), &text)
}
