//! Environment of a measurement: root file system, peers, a daemon for each configuration, images, and a simulated host
//! with a network.

use std::path::Path;
use std::sync::Arc;

use integration::network::Network;

use crate::client::{self, Client, Shape};
use crate::daemon::{Daemon, Setup};
use crate::host::Host;
use crate::images::Images;
use crate::peer::{self, Peer};
use crate::profile::Profiler;
use crate::rootfs::Rootfs;
use crate::run::program;
use crate::{Options, Part, podman, settings};

/// Kinds of the executor's containers in the latency and throughput parts.
const SHAPES: [(&str, Shape); 6] = [
    ("no file", client::TRUE),
    ("secret file", client::TRUE_WITH_SECRET),
    ("50 secret files", client::TRUE_WITH_FIFTY),
    ("CNI network", client::TRUE_WITH_CNI),
    ("bridge network", client::TRUE_WITH_BRIDGE),
    ("bridge network with a port", client::TRUE_WITH_PORT),
];
/// Suffixes of the contestants' names, by root file system.
const ROOTS: [&str; 2] = ["", ", image"];

pub(crate) struct Stage<'a> {
    // Fields are dropped in this order, so daemons stop before the network and the images that they use.
    pub(crate) executors: Vec<Executor>,
    pub(crate) images: Option<Images>,
    network: Option<Network>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) profiler: Profiler,
    pub(crate) host: &'a Host,
}

/// A daemon with one configuration.
pub(crate) struct Executor {
    /// `executor`, or `executor NAME` for one of `--settings`.
    pub(crate) name: String,
    pub(crate) daemon: Daemon,
    pub(crate) client: Client,
}

/// A contestant: one kind of container on one daemon.
pub(crate) struct Ours<'a> {
    pub(crate) name: String,
    pub(crate) daemon: &'a Daemon,
    pub(crate) client: Client,
    pub(crate) shape: Shape,
}

impl<'a> Stage<'a> {
    /// Prepares everything that the selected parts and contestants need.
    pub(crate) async fn set_up(
        options: &Options,
        host: &'a Host,
        scratch: &Path,
        run: &Path,
        seccomp: Option<&serde_json::Value>,
    ) -> anyhow::Result<Self> {
        let rootfs = Arc::new(Rootfs::make(scratch)?);
        let mut peers = peer::find(run, &rootfs, seccomp, host)?;
        peers.retain(|peer| options.wants_contestant(peer.name()));
        let names = executor_names(options);
        let wanted = |name: &String| contestants(name).any(|contestant| options.wants_contestant(&contestant));
        let ours = options.wants_executor() && names.iter().any(wanted);
        let is_wanted = |word: &str| {
            let with_word = |name| contestants(name).filter(|contestant| contestant.contains(word));
            ours && names.iter().flat_map(with_word).any(|contestant| options.wants_contestant(&contestant))
        };
        let network = if options.wants_shapes() && is_wanted("network") { network() } else { None };
        if let Some(network) = &network {
            let podman = podman::find(run, &rootfs, &network.namespace(), host)?.into_iter().map(Peer::Podman);
            peers.extend(podman.filter(|peer| options.wants_contestant(peer.name())));
        }
        let images = if ours && options.wants(Part::Images) || options.wants_shapes() && is_wanted("image") {
            Images::make(&rootfs, network.as_ref())?
        } else {
            None
        };
        let mut executors = Vec::new();
        for (index, name) in names.into_iter().enumerate().filter(|(_, name)| ours && wanted(name)) {
            let settings = index.checked_sub(1).map(|index| &options.settings[index]);
            let config = settings::file(options.most_containers(), (network.as_ref(), index), settings)?;
            let namespace = network.as_ref().map(Network::namespace);
            let directory = format!("executor-{index}");
            let (config, network) = (config.as_str(), namespace.as_deref());
            let setup = Setup { dist: &options.dist, scratch, run, name: &directory, config, network };
            let (daemon, client) = Daemon::start(&setup, &rootfs).await?;
            executors.push(Executor { name, daemon, client });
        }
        let profiler = Profiler::new(options.profile.as_deref())?;
        Ok(Self { executors, images, network, peers, profiler, host })
    }

    /// Returns the selected contestants of the executor. Each shape has one contestant whose root file system is a
    /// directory, and one whose root file system is an image. If this machine has no images, or lacks the network of a
    /// shape, those contestants are omitted.
    pub(crate) fn ours(&self, options: &Options) -> Vec<Ours<'_>> {
        let mut found = Vec::new();
        for executor in &self.executors {
            for root in ROOTS {
                let client = match (&self.images, root) {
                    (_, "") => executor.client.clone(),
                    (Some(images), _) => executor.client.with_rootfs(images.one_layer()),
                    (None, _) => continue,
                };
                for (what, shape) in
                    SHAPES.into_iter().filter(|(_, shape)| shape.network.is_none() || self.network.is_some())
                {
                    let (name, client) = (format!("{}, {what}{root}", executor.name), client.clone());
                    found.push(Ours { name, daemon: &executor.daemon, client, shape });
                }
            }
        }
        found.retain(|ours| options.wants_contestant(&ours.name));
        found
    }

    /// Stops the daemons and returns errors. After a failed measurement, dropping the value stops the daemons.
    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        for executor in &mut self.executors {
            executor.daemon.end()?;
        }
        Ok(())
    }
}

/// Returns the names of the daemons. The first daemon has the benchmark's own configuration.
fn executor_names(options: &Options) -> Vec<String> {
    let more = options.settings.iter().map(|settings| format!("executor {}", settings.name));
    std::iter::once("executor".to_owned()).chain(more).collect()
}

/// Returns the names of all possible contestants of a daemon.
fn contestants(executor: &String) -> impl Iterator<Item = String> {
    ROOTS.into_iter().flat_map(move |root| SHAPES.map(|(what, _)| format!("{executor}, {what}{root}")))
}

/// Creates a simulated host with a CNI network. Prints the missing packages and returns `None` if a required program is
/// not installed.
fn network() -> Option<Network> {
    let plugins = ["bridge", "portmap", "host-local"].map(|name| Path::new("/usr/lib/cni").join(name).is_file());
    let programs = ["ip", "iptables", "busybox", "nsenter"].map(|name| program(name).is_some());
    if plugins.into_iter().chain(programs).any(|there| !there) {
        eprintln!("executor-bench: skipping networks, which require iproute2, iptables, busybox-static and");
        eprintln!("containernetworking-plugins");
        return None;
    }
    let network = Network::new();
    network.configure("10-bench.conflist", "bench", &[]);
    Some(network)
}
