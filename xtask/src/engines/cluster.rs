//! `cargo xtask cluster`: a Kubernetes cluster with one or more nodes, whose runtime is executor-cri.
//!
//! etcd, the API server, the controller manager, the scheduler and the kubelets are stock programs in namespaces of
//! their own ([`super::site`]). kube-proxy, CoreDNS and metrics-server are pods ([`system`]). `cargo xtask
//! cluster-test` runs the cases of this project, which use only kubectl ([`cases`]). `cargo xtask conformance` runs the
//! cases of Kubernetes ([`conformance`]), `cargo xtask cluster-kill` kills programs ([`kill`]), and `cargo xtask
//! cluster-scale` measures the costs of pods and nodes ([`scale`]).

mod cases;
mod certificates;
pub(crate) mod conformance;
mod control;
pub(crate) mod kill;
mod kubectl;
mod leftovers;
pub(crate) mod scale;
mod space;
mod system;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use nix::sys::signal::{SigSet, Signal};

use self::cases::{ALONE, SEVERAL, TOGETHER};
use self::kubectl::Cluster;
use super::Kind;
use super::cases::{CaseOptions, programs};
use super::node::Node;
use super::site::{self, MAX_NODES, Site};
use super::supplies::{self, Supplies};
use crate::workspace::{Workspace, is_root, step};
use crate::{clients, needs, python};

/// Programs of Kubernetes.
const PROGRAMS: [&str; 6] =
    ["kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"];
/// Number of nodes for the cases with several nodes.
const NODES: u8 = 3;
/// Images in addition to the images of critest: the flag of the program `images` and the name of the file.
const IMAGES: [(&str, &str); 5] = [
    ("-dns", "coredns"),
    ("-kubectl", "kubectl"),
    ("-metrics", "metrics-server"),
    ("-proxy", "kube-proxy"),
    ("-proxy-root", "proxy.tar"),
];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Runtime of the nodes
    #[arg(long, value_enum, default_value = "executor")]
    runtime: Kind,
    /// Number of nodes
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=MAX_NODES.into()))]
    nodes: u8,
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
    /// Runtime of the nodes
    #[arg(long, value_enum, default_value = "executor")]
    runtime: Kind,
    /// Run the cases for several nodes instead of the cases for one node
    #[arg(long)]
    several: bool,
}

/// Starts a cluster, and stops it after SIGINT, SIGTERM or SIGHUP.
pub(crate) fn run_command(workspace: &Workspace, options: &Options) -> anyhow::Result<ExitCode> {
    let supplies = build(workspace, options.runtime)?;
    let programs = programs(workspace, options.programs.as_deref())?;
    let Options { runtime, nodes, .. } = *options;
    let start = Start::new(workspace, &supplies, &programs, runtime, nodes);
    start.run(options.logs.as_deref(), |cluster, _| {
        let kubectl = cluster.write_wrapper()?;
        step(&format!("Ready. As root: {} get nodes. Press Ctrl-C to stop the cluster.", kubectl.display()));
        wait_for_signal()?;
        step("Stopping the cluster");
        Ok(ExitCode::SUCCESS)
    })
}

/// Starts a cluster and runs the cases. Fails if a case fails.
pub(crate) fn test_command(workspace: &Workspace, options: &TestOptions) -> anyhow::Result<ExitCode> {
    let (together, alone, nodes) = if options.several { (&[][..], SEVERAL, NODES) } else { (TOGETHER, ALONE, 1) };
    let Some(selection) = options.cases.select(together, alone)? else { return Ok(ExitCode::SUCCESS) };
    let supplies = build(workspace, options.runtime)?;
    install_openbao(workspace, &supplies)?;
    let programs = options.cases.programs(workspace)?;
    let start = Start::new(workspace, &supplies, &programs, options.runtime, nodes);
    let sites = Site::several("cluster", nodes)?;
    let started = start.on(&sites);
    options.cases.run_and_report(started, selection, &sites)
}

fn build(workspace: &Workspace, runtime: Kind) -> anyhow::Result<Supplies> {
    ensure!(is_root(), "the kubelet requires root: run the command as root");
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

/// Copies the program of OpenBao into the directory with the programs of Kubernetes.
fn install_openbao(workspace: &Workspace, supplies: &Supplies) -> anyhow::Result<()> {
    let clients = clients::install(workspace, &python::environment(workspace)?)?;
    let program = supplies.programs().join(cases::OPENBAO);
    fs::copy(clients.join(clients::OPENBAO), program).context("cannot copy OpenBao")?;
    Ok(())
}

/// Settings for the start of a cluster.
struct Start<'a> {
    workspace: &'a Workspace,
    supplies: &'a Supplies,
    /// Directory with the programs of the product.
    programs: &'a Path,
    runtime: Kind,
    /// Number of nodes.
    nodes: u8,
    /// Images to serve in addition to the images of critest, see [`Supplies::serve`].
    images: &'a [(&'a str, &'a str)],
    /// Additional arguments of the kubelets.
    kubelet: &'a [&'a str],
}

impl<'a> Start<'a> {
    /// Returns settings without additional images and arguments of kubelets.
    fn new(workspace: &'a Workspace, supplies: &'a Supplies, programs: &'a Path, runtime: Kind, nodes: u8) -> Self {
        Self { workspace, supplies, programs, runtime, nodes, images: &[], kubelet: &[] }
    }

    /// Starts a cluster, runs `with` on it, and returns the result. Copies the logs to a directory, even after an
    /// error.
    fn run<T>(
        &self,
        logs: Option<&Path>,
        with: impl FnOnce(&Cluster, &[Arc<Site>]) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let sites = Site::several("cluster", self.nodes)?;
        let result = self.on(&sites).and_then(|cluster| with(&cluster, &sites));
        if let Some(logs) = logs {
            site::copy_logs(&sites, logs)?;
        }
        result
    }

    /// Starts a cluster on these sites, with the control plane on the first node.
    fn on(&self, sites: &[Arc<Site>]) -> anyhow::Result<Cluster> {
        let first = sites.first().context("the cluster has no node")?;
        let control = &first.directory;
        certificates::make(control, sites)?;
        control::write_kubeconfigs(control, sites)?;
        step("Starting etcd and the API server");
        let controllers = control::start(&first.room, self.supplies.programs(), control)?;
        let start = |site: &Arc<Site>| {
            step(&format!("Starting the runtime and the kubelet of {}", site.name));
            let registry = self.supplies.serve(&site.room, &site.directory, &[&IMAGES[..], self.images].concat())?;
            let node =
                Node::start(self.workspace, self.supplies, site, self.programs.to_owned(), registry, self.runtime)?;
            let mut arguments = system::write_kubelet_configuration(site, &node.socket())?;
            arguments.extend(self.kubelet.iter().copied().map(str::to_owned));
            node.set_kubelet(self.supplies.programs().join("kubelet"), arguments)?;
            node.start_kubelet()?;
            Ok(node)
        };
        let node = start(first)?;
        let others = sites[1..].iter().map(start).collect::<anyhow::Result<_>>()?;
        let cluster = Cluster::new((node, others), self.supplies.programs().join("kubectl"), controllers);
        cluster.until_nodes_are_ready()?;
        step("Starting kube-proxy, CoreDNS and metrics-server");
        system::start(&cluster)?;
        Ok(cluster)
    }
}

/// Waits for SIGINT, SIGTERM or SIGHUP.
fn wait_for_signal() -> anyhow::Result<()> {
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    signals.thread_block().context("cannot block signals")?;
    signals.wait().context("cannot wait for a signal")?;
    Ok(())
}
