//! `cargo xtask test`: runs all tests, with their setup.
//!
//! Tests that need root start the real binaries ([`dist::build_tested`]). The environment has the paths: EXECUTOR_DIST
//! (the binaries), EXECUTOR_CONTROL_DIST (binaries that do not wipe), EXECUTOR_PYTHON (an interpreter with grpcio),
//! EXECUTOR_GO (modules and plugins for Go), EXECUTOR_CLIENTS (service binding clients, OpenBao). Each cargo run builds
//! the whole workspace, because a run for other packages would unify features differently and rebuild the large
//! dependencies. Several test programs run concurrently ([`programs`]).

mod programs;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::bail;

use self::programs::{Job, Program};
use crate::workspace::{Workspace, is_root, step};
use crate::{clients, demo, dist, go, needs, python};

/// Test that runs only in the virtual machine (`integration/vm/checks/14-quota.sh`).
const QUOTA_TEST: &str = "project_quota_enforces_disk_limit";

/// Program of `integration` whose modules do not run concurrently, because its tests compare the names of all network
/// namespaces of the host.
const UNDIVIDED_PROGRAM: &str = "network";

/// Test modules that run a second time without warm containers, unless `--warm-pool` is given. The two runs cover the
/// warm and the cold creation of containers.
const RUN_TWICE: [(&str, &str); 5] = [
    ("secrets", "attacks"),
    ("secrets", "residue"),
    ("recover", "crash"),
    ("recover", "restart"),
    ("launch", "isolation"),
];

/// Tests in the modules of [`RUN_TWICE`] that create no container, or whose containers are always created in the same
/// manner.
const RUN_ONCE: [&str; 4] = [
    "installation_is_repaired",
    "kill_during_fetch_or_renewal",
    "control_without_wipe_leaves_secrets",
    "pod_outlives_each_killed_process",
];

/// The tests to run.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run only tests whose name contains this text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Skip the tests that need root
    #[arg(long)]
    no_root: bool,
    /// Number of warm containers of the tests' daemons (`[warm_pool] size`)
    #[arg(long, value_name = "N")]
    warm_pool: Option<u32>,
    /// Run the tests with the programs that ship, which takes several times as long to build
    #[arg(long)]
    release: bool,
    /// End a test program after this many minutes, and fail
    #[arg(long, value_name = "MINUTES", default_value_t = 30)]
    limit: u64,
}

/// Sets up and runs the tests. Fails if a test fails, or if tests that need root cannot run although `--no-root` was
/// not given.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let with_root = is_root() && !options.no_root;
    let mut environment: Vec<(&str, OsString)> = Vec::new();
    let mut passed = true;
    needs::require(&needs::TEST)?;
    if with_root {
        needs::require(needs::ROOT_TEST)?;
        // Install while the programs are compiled, because an installation mostly waits for the network.
        let (installed, tested) = thread::scope(|scope| {
            let installed = scope.spawn(|| install(workspace));
            let tested = build(workspace, options.release);
            (installed.join().expect("the installation does not panic"), tested)
        });
        environment.extend(installed?);
        let tested = tested?;
        environment.push(("EXECUTOR_CONTROL_DIST", dist::build_control(workspace)?.into()));
        if options.filter.is_none() {
            step("Showing the demo");
            passed = demo::test(workspace, &tested)? == ExitCode::SUCCESS;
        }
        environment.push(("EXECUTOR_DIST", tested.into()));
        // Tests of a program run sequentially, because root tests compare the host's resources before and after.
        environment.push(("RUST_TEST_THREADS", "1".into()));
        if let Some(ready) = options.warm_pool {
            environment.push(("EXECUTOR_WARM_POOL", ready.to_string().into()));
        }
    }
    step("Building all tests");
    let mut programs = programs::build(workspace)?;
    if !with_root {
        programs.retain(|program| program.package != "integration");
    }
    step(if with_root { "Running all tests" } else { "Running the tests that need no root" });
    let limit = Duration::from_secs(options.limit * 60);
    passed &= programs::run(&jobs(&programs, options, with_root)?, &environment, limit)?;
    passed &= programs::run_examples(workspace, options.filter.as_deref())?;
    if !with_root {
        eprintln!(
            "The tests that need root were NOT run: the package `integration`, and all tests reported as ignored."
        );
        if !options.no_root {
            bail!("run as root to run every test, or pass --no-root");
        }
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Installs what tests in other languages need, and returns the environment variables with the paths.
fn install(workspace: &Workspace) -> anyhow::Result<[(&'static str, OsString); 3]> {
    let python = python::environment(workspace)?;
    let clients = clients::install(workspace, &python)?;
    let go = go::environment(workspace)?;
    Ok([("EXECUTOR_CLIENTS", clients.into()), ("EXECUTOR_PYTHON", python.into()), ("EXECUTOR_GO", go.into())])
}

/// Builds the programs under test, and returns their directory.
fn build(workspace: &Workspace, release: bool) -> anyhow::Result<PathBuf> {
    if release {
        dist::build(workspace)?;
        return Ok(workspace.dist());
    }
    dist::build_tested(workspace)
}

/// Returns one run for each program. For a program of `integration`, returns one run for each of its modules, and a
/// second run without warm containers for some modules. [`UNDIVIDED_PROGRAM`] has one run. Without root, every program
/// has one run.
fn jobs<'a>(programs: &'a [Program], options: &Options, with_root: bool) -> anyhow::Result<Vec<Job<'a>>> {
    let filter = options.filter.as_deref();
    let mut jobs = Vec::new();
    for program in programs {
        if !with_root || program.package != "integration" || program.name == UNDIVIDED_PROGRAM {
            // Tests that need root are marked as ignored, so that a run without root does not report them as passed.
            let root = with_root.then_some("--include-ignored");
            let arguments = filter.into_iter().chain(root).map(str::to_owned).collect();
            jobs.push(Job { program, title: program.name.clone(), arguments, warm_pool: None });
            continue;
        }
        let is_wanted =
            |test: &String| !test.ends_with(QUOTA_TEST) && filter.is_none_or(|filter| test.contains(filter));
        for (module, mut tests) in program.modules()? {
            tests.retain(is_wanted);
            jobs.extend(Job::from_tests(program, &module, tests.clone(), None));
            if filter.is_none() && options.warm_pool.is_none() && RUN_TWICE.contains(&(&program.name, &module)) {
                tests.retain(|test| !RUN_ONCE.iter().any(|name| test.contains(name)));
                jobs.extend(Job::from_tests(program, &format!("{module} without warm containers"), tests, Some("0")));
            }
        }
    }
    Ok(jobs)
}
