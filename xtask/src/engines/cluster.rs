//! `cargo xtask cluster`: a Kubernetes cluster with one node, whose runtime is executor-cri.
//!
//! etcd, the API server, the controller manager, the scheduler and the kubelet are stock programs in namespaces of their
//! own ([`super::room`]). kube-proxy, CoreDNS and metrics-server are pods ([`system`]). `cargo xtask cluster-test` runs
//! the cases ([`cases`]), which use kubectl alone, and `cargo xtask conformance` those of Kubernetes ([`conformance`]).

mod cases;
mod certificates;
pub(crate) mod conformance;
mod control;
mod kubectl;
mod space;
mod system;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, LazyLock};

use anyhow::{Context as _, ensure};
use nix::sys::signal::{SigSet, Signal};

use self::cases::{ALONE, TOGETHER};
use self::kubectl::Cluster;
use super::cases::{CaseOptions, programs};
use super::room::Room;
use super::supplies::{self, Supplies};
use super::{Kind, node};
use crate::needs;
use crate::workspace::{Workspace, is_root, step};

/// Name of the node's parent cgroup. A kubelet kills the pods of another one with the same parent.
static CGROUP: LazyLock<String> = LazyLock::new(|| format!("cluster-{}", std::process::id()));
/// Programs of Kubernetes.
const PROGRAMS: [&str; 6] =
    ["kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"];
/// Images besides those of critest: the flag of `images` and the name of the file.
const IMAGES: [(&str, &str); 5] = [
    ("-dns", "coredns"),
    ("-kubectl", "kubectl"),
    ("-metrics", "metrics-server"),
    ("-proxy", "kube-proxy"),
    ("-proxy-root", "proxy.tar"),
];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Runtime of the node
    #[arg(long, value_enum, default_value = "executor")]
    runtime: Kind,
    /// Use the programs of the product in this directory instead of building them
    #[arg(long, value_name = "DIRECTORY")]
    programs: Option<PathBuf>,
    /// Copy the logs of all programs to this directory
    #[arg(long, value_name = "DIRECTORY")]
    logs: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct TestOptions {
    #[command(flatten)]
    cases: CaseOptions,
    /// Runtime of the node
    #[arg(long, value_enum, default_value = "executor")]
    runtime: Kind,
}

/// Starts a cluster, and ends it after SIGINT or SIGTERM.
pub(crate) fn run_command(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let supplies = build(workspace, options.runtime)?;
    let programs = programs(workspace, options.programs.as_deref())?;
    let directory = tempfile::Builder::new().prefix("executor-cluster-").tempdir()?;
    let directory = directory.path();
    let room = Arc::new(Room::open(directory, node::PREPARE, &CGROUP)?);
    let started = start(workspace, &supplies, &room, programs, directory, options.runtime, &[]);
    let result = started.and_then(|cluster| {
        let kubectl = cluster.write_wrapper()?;
        step(&format!("Ready. As root: {} get nodes. Ctrl-C ends the cluster.", kubectl.display()));
        wait_for_signal()?;
        step("Ending the cluster");
        Ok(ExitCode::SUCCESS)
    });
    if let Some(logs) = &options.logs {
        super::keep_logs(directory, logs)?;
    }
    result
}

/// Starts a cluster and runs the cases. Fails if one fails.
pub(crate) fn test_command(workspace: &Workspace, options: &TestOptions) -> anyhow::Result<ExitCode> {
    let Some(selection) = options.cases.select(TOGETHER, ALONE)? else { return Ok(ExitCode::SUCCESS) };
    let supplies = build(workspace, options.runtime)?;
    let programs = options.cases.programs(workspace)?;
    let directory = tempfile::Builder::new().prefix("executor-cluster-").tempdir()?;
    let directory = directory.path();
    let room = Arc::new(Room::open(directory, node::PREPARE, &CGROUP)?);
    let started = start(workspace, &supplies, &room, programs, directory, options.runtime, &[]);
    options.cases.run_and_report(started, selection, directory)
}

fn build(workspace: &Workspace, runtime: Kind) -> anyhow::Result<Supplies> {
    ensure!(is_root(), "the kubelet needs root");
    needs::require(&needs::ENGINES)?;
    needs::require(&needs::KUBELET)?;
    needs::require(&needs::CLUSTER)?;
    if runtime == Kind::Containerd {
        needs::require(&needs::ENGINES_RUN)?;
    }
    let supplies = Supplies::prepare(workspace)?;
    for name in PROGRAMS {
        supplies::kubernetes(workspace, name)?;
    }
    supplies::modules(workspace)?;
    supplies.proxy()?;
    Ok(supplies)
}

/// Starts a cluster. `images` are further images for [`Supplies::serve`].
fn start(
    workspace: &Workspace,
    supplies: &Supplies,
    room: &Arc<Room>,
    programs: PathBuf,
    directory: &Path,
    runtime: Kind,
    images: &[(&str, &str)],
) -> anyhow::Result<Cluster> {
    certificates::make(directory)?;
    control::write_kubeconfigs(directory)?;
    step("Starting etcd and the API server");
    let controllers = control::start(room, supplies.programs(), directory)?;
    step("Starting the runtime and the kubelet");
    let registry = supplies.serve(room, directory, &[&IMAGES[..], images].concat())?;
    let node = node::Node::start(workspace, supplies, room, programs, registry, (directory, &CGROUP), runtime)?;
    node.set_kubelet(
        supplies.programs().join("kubelet"),
        system::write_kubelet_configuration(directory, &node.socket(), &CGROUP)?,
    )?;
    node.start_kubelet()?;
    let cluster = Cluster::new(node, supplies.programs().join("kubectl"), controllers, Arc::clone(room));
    cluster.until_node_is_ready()?;
    step("Starting kube-proxy, CoreDNS and metrics-server");
    system::start(&cluster)?;
    Ok(cluster)
}

/// Waits for SIGINT, SIGTERM or SIGHUP.
fn wait_for_signal() -> anyhow::Result<()> {
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    signals.thread_block().context("blocking signals")?;
    signals.wait().context("waiting for a signal")?;
    Ok(())
}
