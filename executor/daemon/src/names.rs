//! The name server of the built-in networks. Containers of a network find each other by name; queries for other names
//! are forwarded to the host's name servers.
//!
//! ```text
//! serve     serves the sockets that the launcher opens on the gateways; responds only to containers of the network
//! zone      names and addresses of the running containers, by network
//! wire      queries and responses in the format of RFC 1035
//! limits    limits for each container and for all containers together
//! policy    decides which name servers a container's query may be forwarded to
//! forward   sends a query to a name server, over UDP or TCP
//! upstream  the name servers of the host
//! ```
//! Input: queries, and the responses of name servers; both are untrusted. Output: responses to containers. Nothing is
//! cached.

mod forward;
mod limits;
mod policy;
mod serve;
mod upstream;
mod wire;
mod zone;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use executor_core::bridge::{BridgeNetwork, default_network};
use executor_core::cni::is_config_name;
use executor_core::ident::ContainerId;
use executor_core::plan::Plan;
use executor_sys::mutex::locked;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use crate::launcher::Launcher;
use crate::store::registry::Registry;
use crate::telemetry::metrics::Metrics;
use limits::{CONNECTIONS_MAX, FORWARDS_MAX, WAITING_MAX};
use upstream::HostServers;
use zone::{Client, Zone};

/// Pause between attempts to open the sockets, for example if another program uses the port.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// Time limit for a query from a container whose start has not been reported to executord yet.
const START_REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// The name servers of all built-in networks.
#[derive(Debug)]
pub struct NameServers {
    networks: BTreeMap<String, Arc<ServedNetwork>>,
    default_network: Option<String>,
    /// Configuration directory of CNI networks. The first CNI network, if any, is the default network.
    cni_conf_dir: PathBuf,
    registry: Arc<Registry>,
    launcher: Arc<Launcher>,
    metrics: Arc<Metrics>,
    zone: Mutex<Arc<Zone>>,
    host_servers: HostServers,
    /// Permits for forwarding a query.
    forwards: Arc<Semaphore>,
    /// Permits for TCP connections.
    connections: Arc<Semaphore>,
    /// Permits for queries that wait until the container's start is reported to executord.
    waiting: Arc<Semaphore>,
}

/// A built-in network with its name server.
#[derive(Debug)]
struct ServedNetwork {
    network: BridgeNetwork,
    state: tokio::sync::Mutex<SocketState>,
    /// Error of the last attempt to open the sockets, if the attempt failed.
    trouble: Mutex<Option<String>>,
}

/// State of a network's sockets.
#[derive(Debug)]
enum SocketState {
    /// No container has needed the sockets yet.
    Closed,
    /// Tasks serve the sockets until this process exits.
    Open,
    /// The last attempt failed at this time.
    Failed(Instant),
}

impl NameServers {
    /// Creates the name servers. No socket is opened yet.
    pub(crate) fn new(
        (networks, cni_conf_dir): (&BTreeMap<String, BridgeNetwork>, &Path),
        registry: Arc<Registry>,
        launcher: Arc<Launcher>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let served = |network: &BridgeNetwork| ServedNetwork {
            network: network.clone(),
            state: tokio::sync::Mutex::new(SocketState::Closed),
            trouble: Mutex::default(),
        };
        Arc::new(Self {
            networks: networks.iter().map(|(name, network)| (name.clone(), Arc::new(served(network)))).collect(),
            default_network: default_network(networks).map(|network| network.name.clone()),
            cni_conf_dir: cni_conf_dir.to_owned(),
            registry,
            launcher,
            metrics,
            zone: Mutex::default(),
            host_servers: HostServers::default(),
            forwards: Arc::new(Semaphore::new(FORWARDS_MAX)),
            connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
        })
    }

    /// Opens the name server of a container's network. Returns true if the name server is open; false if the network is
    /// not built in or the sockets cannot be opened. After a failure, the next attempt is made only after a pause.
    pub(crate) async fn open_for(self: &Arc<Self>, plan: &Plan) -> bool {
        let name = match plan.own_network() {
            None => return false,
            Some("") if has_cni_network(&self.cni_conf_dir) => return false,
            Some("") => self.default_network.as_deref(),
            Some(name) => Some(name),
        };
        match name.and_then(|name| self.networks.get(name)) {
            None => false,
            Some(served) => self.open(served).await,
        }
    }

    /// Keeps the name servers of running containers open, for example after a restart of executord.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut changes = self.registry.watch_networks();
        let mut greetings = self.launcher.watch_greetings();
        loop {
            changes.borrow_and_update();
            greetings.borrow_and_update();
            let mut all_open = true;
            for served in self.networks.values() {
                let is_open = matches!(*served.state.lock().await, SocketState::Open);
                if !is_open && self.zone().has_clients(&served.network.name) {
                    all_open &= self.open(served).await;
                }
            }
            let changed = async {
                tokio::select! {
                    changed = changes.changed() => changed.is_ok(),
                    greeted = greetings.changed() => greeted.is_ok(),
                    () = sleep(RETRY_DELAY), if !all_open => true,
                }
            };
            if !changed.await {
                return; // both senders were dropped
            }
        }
    }

    /// Returns the error of the last attempt to open a network's name server, if the attempt failed.
    pub(crate) fn trouble(&self, network: &str) -> Option<String> {
        locked(&self.networks.get(network)?.trouble).clone()
    }

    /// Returns the names of a container or pod on a network. Other containers on the network can look up these names.
    pub(crate) fn names(&self, network: &str, id: &str) -> Vec<String> {
        let is_built_in = self.networks.contains_key(network);
        let id: Option<ContainerId> = id.parse().ok().filter(|_| is_built_in);
        let facts = id.and_then(|id| self.registry.get(&id)).and_then(|handle| handle.facts());
        let Some(facts) = facts.filter(|facts| facts.network().is_some()) else { return Vec::new() };
        let mut names = zone::names(&facts.plan);
        let members = if facts.plan.is_pod() { self.registry.members(&facts.plan.id) } else { Vec::new() };
        let is_member = |facts: &crate::model::status::ContainerStatus| facts.network().is_some();
        names.extend(
            members
                .iter()
                .filter(|member| member.facts().is_some_and(|facts| is_member(&facts)))
                .map(|member| member.id().as_str().to_ascii_lowercase()),
        );
        names
    }

    /// Opens the sockets of a network and serves them. Returns true if they are open.
    async fn open(self: &Arc<Self>, served: &Arc<ServedNetwork>) -> bool {
        let mut state = served.state.lock().await;
        match &*state {
            SocketState::Open => return true,
            SocketState::Failed(at) if at.elapsed() < RETRY_DELAY => return false,
            SocketState::Closed | SocketState::Failed(_) => {}
        }
        if self.launcher.session().is_err() {
            return false;
        }
        let name = &served.network.name;
        let opened = match self.launcher.name_sockets(name).await {
            Ok(sockets) => serve::start(self, served, sockets).map_err(|error| executor_core::errors::plain(&error)),
            Err(problem) => Err(problem.message),
        };
        let trouble = opened.err().map(|why| format!("containers have no name server: {why}"));
        *state = if trouble.is_none() { SocketState::Open } else { SocketState::Failed(Instant::now()) };
        let before = std::mem::replace(&mut *locked(&served.trouble), trouble.clone());
        if let Some(why) = trouble.as_ref().filter(|_| trouble != before) {
            tracing::warn!(network = %name, "{why}");
        }
        trouble.is_none()
    }

    /// Returns the current containers of all networks.
    fn zone(&self) -> Arc<Zone> {
        let version = *self.registry.watch_networks().borrow();
        let mut zone = locked(&self.zone);
        if !zone.is_version(version) {
            *zone = Arc::new(Zone::new(version, &self.registry.all(), &zone, |name| {
                self.networks.get(name).map(|served| &served.network)
            }));
        }
        Arc::clone(&zone)
    }

    /// Returns the container that has this address on a network.
    fn client(&self, served: &ServedNetwork, address: IpAddr) -> Option<Arc<Client>> {
        self.zone().client(&served.network.name, address)
    }

    /// Returns the container that has this address on a network. If the container's start has not been reported to
    /// executord yet, waits for the report.
    async fn wait_for_client(&self, served: &ServedNetwork, address: IpAddr) -> Option<Arc<Client>> {
        if let Some(client) = self.client(served, address) {
            return Some(client);
        }
        let number = served.network.number_of(address)?;
        let _permit = self.waiting.try_acquire().ok().filter(|_| served.network.numbers().contains(&number))?;
        let mut changes = self.registry.watch_networks();
        let known = async {
            loop {
                changes.borrow_and_update();
                if let Some(client) = self.client(served, address) {
                    return Some(client);
                }
                changes.changed().await.ok()?;
            }
        };
        timeout(START_REPORT_TIMEOUT, known).await.ok().flatten()
    }
}

/// Returns true if a CNI network is configured. A directory that executord cannot read counts as empty. The sockets are
/// then opened even if they are not needed.
fn has_cni_network(dir: &Path) -> bool {
    let mut entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.any(|entry| entry.file_name().to_str().is_some_and(is_config_name))
}
