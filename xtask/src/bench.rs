//! `cargo xtask bench`: installs the runtimes that are compared, builds everything, and runs the benchmark.
//!
//! The measurements are in `executor-bench` (`integration/`), which gets the paths of all programs.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::ensure;

use crate::workspace::{Workspace, in_path, is_root, run as run_command, step};
use crate::{dist, needs};

/// Path of podman's default seccomp profile in Debian and Fedora.
const INSTALLED_PROFILE: &str = "/usr/share/containers/seccomp.json";
/// Debian package with that profile. The package is unpacked instead of installed, because it depends on many packages
/// of podman.
const PROFILE_PACKAGE: &str = "golang-github-containers-common";

/// Names of the contestants that the executor is compared with.
const PEERS: [&str; 4] = ["raw floor", "bwrap", "crun, full seccomp", "runc, full seccomp"];

/// The measurements to make.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of runs per contestant
    #[arg(long, value_name = "N", default_value_t = 200)]
    runs: u32,
    /// Also write the numbers to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run only these parts: latency, throughput, burst, memory, many, failures, images, redaction, strangers
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<String>,
    /// Run only contestants whose name contains one of these: floor, bwrap, crun, runc, executor
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    contestants: Vec<String>,
    /// Add an executord with additional configuration keys: 'NAME=launcher.watchdog_seconds = 0'
    #[arg(long, value_name = "NAME=TOML")]
    settings: Vec<String>,
    /// Number of containers per measurement of the part throughput
    #[arg(long, value_name = "N", default_value_t = 160)]
    lives: u32,
    /// Number of containers per burst
    #[arg(long, value_name = "N", default_value_t = 100)]
    burst: u32,
    /// Number of containers of the part `many`
    #[arg(long, value_name = "N", default_value_t = 1000)]
    many: u32,
    /// Also record each part with perf, if it is installed, and write reports
    #[arg(long, value_name = "DIR")]
    profile: Option<PathBuf>,
}

/// Installs the runtimes to compare, builds the binaries, and runs the benchmark.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    ensure!(is_root(), "the benchmark requires root: run the command as root");
    let wants = |part: &str| options.only.is_empty() || options.only.iter().any(|only| only == part);
    // The redaction part runs no container.
    let containers = options.only.is_empty() || options.only.iter().any(|part| part != "redaction");
    if containers {
        needs::prefer(&needs::BENCH);
    }
    let profile = if containers { seccomp_profile(workspace) } else { None };
    let of_a_peer = |name: &String| PEERS.iter().any(|peer| peer.contains(name)) && !"executor".contains(name);
    if containers && (options.contestants.is_empty() || !options.contestants.iter().all(of_a_peer)) {
        if wants("images") {
            needs::require(&needs::BENCH_IMAGES)?;
        }
        if wants("latency") || wants("throughput") {
            needs::prefer(&needs::BENCH_IMAGES);
            needs::prefer(&needs::BENCH_NETWORK);
        }
        dist::build(workspace)?;
    }
    step("Building executor-bench");
    let program = dist::build_tool(workspace, "integration", "executor-bench")?;

    let mut command = Command::new(program);
    command.arg("--dist").arg(workspace.dist()).arg("--runs").arg(options.runs.to_string());
    command.arg("--burst").arg(options.burst.to_string()).arg("--many").arg(options.many.to_string());
    command.arg("--lives").arg(options.lives.to_string());
    for (option, path) in [("--seccomp", &profile), ("--json", &options.json), ("--profile", &options.profile)] {
        if let Some(path) = path {
            command.arg(option).arg(path);
        }
    }
    for settings in &options.settings {
        command.arg("--settings").arg(settings);
    }
    for (option, values) in [("--only", &options.only), ("--contestants", &options.contestants)] {
        if !values.is_empty() {
            command.arg(option).arg(values.join(","));
        }
    }
    let status = command.status()?;
    // Status 3 means that the machine was not idle.
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Returns podman's default profile: the installed file, or the file from Debian's package.
fn seccomp_profile(workspace: &Workspace) -> Option<PathBuf> {
    let installed = PathBuf::from(INSTALLED_PROFILE);
    if installed.exists() {
        return Some(installed);
    }
    let directory = workspace.target.join("seccomp-profile");
    let unpacked = directory.join(INSTALLED_PROFILE.trim_start_matches('/'));
    if !unpacked.exists() {
        step("Fetching podman's seccomp profile");
        if let Err(error) = unpack(&directory) {
            eprintln!("  no full seccomp profile ({error:#}): continuing without it");
        }
    }
    unpacked.exists().then_some(unpacked)
}

fn unpack(directory: &PathBuf) -> anyhow::Result<()> {
    ensure!(in_path("apt-get") && in_path("dpkg-deb"), "apt-get or dpkg-deb is missing: the benchmark requires Debian");
    std::fs::create_dir_all(directory)?;
    let scratch = tempfile::tempdir()?;
    // apt's sandbox user cannot write here, so apt would warn when run as root.
    let fetch = || {
        let mut command = Command::new("apt-get");
        command.args(["download", "-qq", "-o", "APT::Sandbox::User=root", PROFILE_PACKAGE]);
        run_command(command.current_dir(scratch.path()).stdin(Stdio::null()).stderr(Stdio::null()))
    };
    if fetch().is_err() {
        run_command(Command::new("apt-get").args(["update", "-qq"]).stdin(Stdio::null()))?;
        fetch()?;
    }
    for entry in std::fs::read_dir(scratch.path())? {
        run_command(Command::new("dpkg-deb").arg("--extract").arg(entry?.path()).arg(directory))?;
    }
    Ok(())
}
