//! `cargo xtask engines-test`: runs critest, the conformance tests of the Kubernetes runtime interface (CRI).
//!
//! critest judges Debian's containerd, whose results are the yardstick in docs/cri.md. Everything runs in namespaces of
//! its own ([`room`]), with the images that critest pulls made and served locally ([`supplies`]).

mod containerd;
mod report;
mod room;
mod supplies;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};

use self::report::Report;
use self::room::Room;
use self::supplies::Supplies;
use crate::needs;
use crate::workspace::{Workspace, is_root, run, step};

/// Specs that critest 1.37.0 selects on Linux.
const SELECTED: usize = 137;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only specs whose name matches this regular expression
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
    /// Copy critest's and containerd's logs to this directory
    #[arg(long, value_name = "DIRECTORY")]
    logs: Option<std::path::PathBuf>,
}

/// Builds critest and runs it against containerd. Fails if specs of a whole run differ from the yardstick.
pub(crate) fn run_command(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    needs::require(&needs::ENGINES)?;
    if options.list {
        let critest = supplies::critest(workspace)?;
        let specs = report::selected(&critest)?;
        println!("critest selects {specs} specs");
        ensure!(specs == SELECTED, "docs/cri.md and the rules are about {SELECTED} specs");
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(is_root(), "containerd needs root");
    needs::require(&needs::ENGINES_RUN)?;
    let supplies = Supplies::prepare(workspace)?;
    let directory = tempfile::Builder::new().prefix("executor-engines-").tempdir()?;
    let room = Room::open(directory.path())?;
    step("Serving the images of critest");
    let registry = supplies.serve(&room, directory.path())?;
    step("Starting containerd");
    let containerd = containerd::start(&room, directory.path(), &registry.address)?;
    step("Running critest (2 minutes for all specs)");
    let report = critest(options, &supplies, &room, directory.path(), &containerd);
    if let Some(logs) = &options.logs {
        std::fs::create_dir_all(logs)?;
        for name in ["critest.log", "containerd.log", "images.log"] {
            std::fs::copy(directory.path().join(name), logs.join(name)).with_context(|| name.to_owned())?;
        }
    }
    let report = report?;
    if options.json {
        println!("{}", report.to_json());
    } else {
        print!("{report}");
    }
    let is_whole = options.focus.is_none() && options.skip.is_none();
    Ok(if is_whole && report.specs.len() != SELECTED { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Runs critest against the runtime at `socket`.
fn critest(
    options: &Options,
    supplies: &Supplies,
    room: &Room,
    directory: &Path,
    runtime: &containerd::Containerd,
) -> anyhow::Result<Report> {
    let (json, list) = (directory.join("report.json"), directory.join("images.yaml"));
    let images = "defaultTestContainerImage: registry.k8s.io/e2e-test-images/busybox:1.29-2\n\
                  webServerTestImage: registry.k8s.io/e2e-test-images/nginx:1.14-2\n";
    std::fs::write(&list, images)?;
    let endpoint = format!("unix://{}", runtime.socket.display());
    let mut command = room.command(&supplies.critest);
    command.args(["-runtime-endpoint", &endpoint, "-image-endpoint", &endpoint, "-ginkgo.no-color"]);
    command.arg("-test-images-file").arg(&list).arg("-ginkgo.json-report").arg(&json);
    for (flag, value) in [("-ginkgo.focus", &options.focus), ("-ginkgo.skip", &options.skip)] {
        command.args(value.iter().flat_map(|value| [flag, value]));
    }
    let log = std::fs::File::create(directory.join("critest.log"))?;
    // critest writes reports below its working directory.
    command.current_dir(directory).stdout(log.try_clone()?).stderr(log);
    // A failed spec is a result, and a run that fails as a whole leaves no report.
    let _ = run(&mut command);
    let text = std::fs::read(&json).with_context(|| {
        format!("critest wrote no report; --logs keeps {}", directory.join("critest.log").display())
    })?;
    Report::parse(runtime.name.clone(), &text)
}
