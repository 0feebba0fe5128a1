//! Attaches containers to networks. The shim attaches a container before the container runs, and detaches it after its
//! exit. If the shim has exited before that, the launcher or a later launcher detaches the container. If CNI plugins
//! fail, the launcher repeats the detachment.
//!
//! ```text
//! bridge      built-in bridge networks
//! cni         networks of the operator's CNI plugins
//! ports       refuses host ports that are in use, reserves the ports of containers
//! store       records for detaching, written to disk before anything else is done
//! list        lists networks with their containers, for the API
//! checks      checks whether the containers are still connected, for the API
//! name_sockets  opens the sockets of executord's name server
//! egress      blocks or limits traffic beyond the network, inside the container's network namespace
//! netlink     sockets and messages
//! nft         nf_tables
//! ```

mod attachment;
mod bridge;
mod checks;
mod cni;
mod egress;
mod list;
mod name_sockets;
mod netlink;
mod netns;
mod nft;
mod ports;
mod store;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use executor_core::bridge::{BridgeNetwork, default_network};
use executor_core::cni::{Addresses, Attachment, Capabilities, CniNetwork};
use executor_core::ident::ContainerId;
use executor_core::plan;
use executor_core::protocol::{Reason, Refused};
use executor_core::record::{Attached, ContainerRecord};
use executor_core::validate::Violation;
use ipnet::IpNet;

use crate::errors::failed;
use crate::host::Host;
use crate::log::{self, Level};
use attachment::BridgeAttachment;
pub(crate) use checks::check;
use cni::Fault;
pub(crate) use list::list;
pub(crate) use name_sockets::open_name_sockets;
pub(crate) use ports::Reserved;
use store::Stored;

/// Time limit for killed plugins to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limits for one plugin, and for all plugins together, while the launcher itself waits for plugins and serves no
/// other container.
const BRIEF_TIMEOUTS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));
/// Time limit for a starting launcher to detach the containers of earlier launchers.
const DETACH_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of plugins that may each use their full time limit, if only one container waits for the plugins.
const SLOW_PLUGINS: u32 = 4;

/// A container attached to its network.
pub(crate) struct OnNetwork {
    /// Network and addresses, for the container's record.
    pub record: Attached,
    /// Addresses, gateways and name servers.
    pub addresses: Addresses,
    /// Reserved host ports, released on drop.
    pub reserved: Reserved,
}

/// Time limits for calls of CNI plugins.
#[derive(Clone, Copy)]
pub(crate) struct PluginTimeouts {
    plugin: Duration,
    until: Instant,
}

impl PluginTimeouts {
    /// Returns the limits to use if only one container waits.
    pub(crate) fn whole(host: &Host) -> Self {
        Self { plugin: host.plugin_timeout, until: Instant::now() + longest(host) }
    }

    /// Returns the limits to use if the cleanup of a pod waits for plugins: all plugins together have the time limit of
    /// one plugin.
    pub(crate) fn single(host: &Host) -> Self {
        Self { plugin: host.plugin_timeout, until: Instant::now() + host.plugin_timeout }
    }

    /// Returns the limits to use while the launcher waits for plugins, because then all containers wait.
    pub(crate) fn brief(host: &Host) -> Self {
        Self { plugin: host.plugin_timeout.min(BRIEF_TIMEOUTS.0), until: Instant::now() + BRIEF_TIMEOUTS.1 }
    }

    fn deadline(self) -> Instant {
        self.until.min(Instant::now() + self.plugin)
    }
}

/// Returns the maximum time that attaching or detaching a container may take.
pub(crate) fn longest(host: &Host) -> Duration {
    host.plugin_timeout * SLOW_PLUGINS
}

/// A failure of network setup, by its cause.
#[derive(Debug, thiserror::Error)]
enum NetworkError {
    #[error("plugin `{0}`, {1}: {2}")]
    Plugin(String, &'static str, Fault),
    #[error("plugin `{0}`: {1}")]
    Answer(String, String),
    #[error("host port {0} is already published by container `{1}`")]
    Port(String, String),
    #[error("{0}: {1}")]
    HostPort(String, &'static str),
    #[error("the configuration and the plugins support no common version of CNI")]
    NoVersion,
    #[error("all {0} addresses are in use")]
    Full(u32),
    #[error("no longer configured")]
    Removed,
    #[error(
        "the configuration changed while containers use the network; remove the containers, or \
             undo the change of networks.{0}"
    )]
    Changed(String),
    #[error(
        "host interface `{0}` does not belong to the executor; remove the interface, or set \
             networks.{1}.interface to another name"
    )]
    ForeignInterface(String, String),
    #[error("the addresses {pool} overlap the route {route} of interface {interface}; set {key} to a free range")]
    Overlap { pool: IpNet, route: IpNet, interface: String, key: String },
    #[error("cannot change nf_tables rules: {}; built-in networks need the kernel modules nf_tables, nft_nat, \
             nft_masq, nft_fib_inet, nft_ct and nft_fwd_netdev", crate::errors::plain(.0))]
    Rules(io::Error),
    #[error("{what}: {why}", what = .0, why = crate::errors::plain(.1))]
    System(&'static str, io::Error),
}

impl NetworkError {
    fn refused(&self, network: &str) -> Refused {
        if let Self::Port(..) | Self::HostPort(..) = self {
            return Refused::from_fields(Reason::Precondition, &[Violation::new("ports", self.to_string())]);
        }
        if let Self::System(what, error) = self {
            return failed(&format!("network `{network}`: {what}"), error);
        }
        let reason = match self {
            Self::System(..) | Self::Plugin(_, _, Fault::System(..)) => Reason::Internal,
            Self::Full(_) => Reason::Exhausted,
            Self::Plugin(..)
            | Self::Answer(..)
            | Self::Port(..)
            | Self::HostPort(..)
            | Self::NoVersion
            | Self::ForeignInterface(..)
            | Self::Removed
            | Self::Changed(_)
            | Self::Overlap { .. }
            | Self::Rules(_) => Reason::Precondition,
        };
        Refused::new(reason, format!("network `{network}`: {self}"))
    }
}

/// A configured network: built-in or CNI.
enum Configured<'a> {
    Bridge(&'a BridgeNetwork),
    Cni(CniNetwork),
}

impl Configured<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Bridge(network) => &network.name,
            Self::Cni(network) => &network.name,
        }
    }
}

/// Returns the network of this name. An empty name selects the first CNI network, or the built-in default network if no
/// CNI network is configured.
fn find<'a>(host: &'a Host, name: &str) -> Result<Configured<'a>, String> {
    if let Some(network) = built_in(host, name) {
        return Ok(Configured::Bridge(network));
    }
    cni::config::find(&host.policy.cni_conf_dir, name).map(Configured::Cni).map_err(|why| {
        let names: Vec<&str> = host.networks.keys().map(String::as_str).collect();
        if names.is_empty() { why } else { format!("{why}; built-in networks: {}", names.join(", ")) }
    })
}

/// Returns the built-in network that a request with this name uses. Returns `None` for a CNI network or an unknown
/// name.
fn built_in<'a>(host: &'a Host, name: &str) -> Option<&'a BridgeNetwork> {
    let default = || {
        default_network(&host.networks).filter(|_| name.is_empty() && cni::config::is_empty(&host.policy.cni_conf_dir))
    };
    host.networks.get(name).or_else(default)
}

/// A warm container's attachment to a built-in network. The container that the warm container becomes takes over the
/// attachment.
pub(crate) struct WarmNetwork(BridgeAttachment);

/// Returns true if a request for the network of this name can use a warm container on the configured network.
pub(crate) fn is_warm_network(host: &Host, name: &str) -> bool {
    !host.warm_pool_network.is_empty()
        && built_in(host, name).is_some_and(|network| network.name == host.warm_pool_network)
}

/// Returns true if warm containers leave enough free addresses on their network for other containers.
pub(crate) fn has_room_for_warm(host: &Host) -> bool {
    let network = host.networks.get(&host.warm_pool_network);
    network.is_some_and(|network| bridge::has_free(host, network, 2 * host.warm_pool_size))
}

/// Prefix of the record names of warm containers. No container id begins with a dot.
const WARM_PREFIX: &str = ".warm-";

/// Returns the record name of a warm container.
fn warm_record(name: &str) -> String {
    format!("{WARM_PREFIX}{name}")
}

/// Returns the names of the warm containers that have a record.
pub(crate) fn warm_names(host: &Host) -> Vec<String> {
    let names = store::names(host);
    names.iter().filter_map(|name| name.strip_prefix(WARM_PREFIX)).map(str::to_owned).collect()
}

impl WarmNetwork {
    /// Attaches a warm container, whose init has the pidfd `init`, to the configured network.
    ///
    /// # Errors
    /// Returns a refusal if the attachment fails. The caller must then call [`detach_warm`], which undoes a partial
    /// attachment.
    pub(crate) fn attach(host: &Host, name: &str, init: BorrowedFd<'_>) -> Result<Self, Refused> {
        let network = &host.warm_pool_network;
        let boot_id = executor_sys::identity::boot_id().map_err(|error| failed("cannot read the boot id", &error))?;
        let configured = host.networks.get(network).ok_or(NetworkError::Removed);
        let attached =
            configured.and_then(|network| bridge::attach_warm(host, (&warm_record(name), &boot_id), network, init));
        attached.map(Self).map_err(|trouble| trouble.refused(network))
    }

    /// Transfers the attachment to a container.
    ///
    /// # Errors
    /// Returns a refusal if the disk fails. The caller must then call [`detach_warm`] and [`detach`].
    pub(crate) fn adopt(self, host: &Host, id: &ContainerId) -> Result<Self, Refused> {
        bridge::adopt(host, self.0, id)
            .map(Self)
            .map_err(|error| failed("cannot write the stored network data", &error))
    }
}

/// Detaches the warm container of this name. Does nothing if it is not attached, or if a container took over the
/// attachment.
pub(crate) fn detach_warm(host: &Host, name: &str) {
    let record = warm_record(name);
    let detached = match store::read(host, &record) {
        Ok(Some(Stored::Bridge(attachment))) => bridge::detach(host, &attachment),
        Ok(None) => store::remove_partial(host, &record).map_err(|error| error.to_string()),
        // A warm container has no published ports.
        Ok(Some(Stored::Cni(_))) | Err(_) => {
            store::remove(host, &record, &Capabilities::default()).map_err(|error| error.to_string())
        }
    };
    if let Err(why) = detached {
        log::line(Level::Error, "", format_args!("a warm container was not detached from its network: {why}"));
    }
}

/// Attaches a container to the network that its plan names, if any. `pid` and `pidfd` identify the container's init.
/// `warm` is the attachment that the container took over from a warm container. After a failure the caller must call
/// [`detach`].
pub(crate) fn attach(
    host: &Host,
    record: &ContainerRecord,
    (pid, pidfd): (i32, BorrowedFd<'_>),
    warm: Option<WarmNetwork>,
) -> Result<Option<OnNetwork>, Refused> {
    let plan = &record.plan;
    if plan.network != plan::Network::Cni || !plan.makes_network() {
        return Ok(None);
    }
    let violation =
        |field: &str, why: String| Refused::from_fields(Reason::Precondition, &[Violation::new(field, why)]);
    let network = find(host, &plan.connectivity.network_name).map_err(|why| violation("network_name", why))?;
    let asked = Capabilities::from_asked(&plan.connectivity);
    let name = network.name().to_owned();
    if warm.is_none() {
        // Detach an earlier container with the same id, whose detachment failed after its exit.
        detach(host, &plan.id, PluginTimeouts::whole(host)).map_err(|why| {
            let why = format!("an earlier container with this id is still on its network: {why}");
            Refused::new(Reason::Precondition, why)
        })?;
    }
    let is_built_in = matches!(network, Configured::Bridge(_));
    if !is_built_in && !plan.connectivity.network_aliases.is_empty() {
        let why = format!("network `{name}` uses CNI plugins; only built-in networks have aliases");
        return Err(violation("network_aliases", why));
    }
    if is_built_in && plan.connectivity.cni.is_some() {
        let why = format!("network `{name}` is built in; only networks of CNI plugins have CNI options");
        return Err(violation("cni", why));
    }
    let attached = match network {
        Configured::Bridge(_) if let Some(WarmNetwork(place)) = warm => bridge::complete(host, record, place, asked),
        Configured::Bridge(network) => bridge::attach(host, record, network, asked, pidfd),
        Configured::Cni(network) if asked.lacks_port_plugin(&network) => {
            let why = format!("network `{}` has no plugin with the capability `portMappings`", network.name);
            return Err(violation("ports", why));
        }
        Configured::Cni(network) => cni::attach(host, record, network, asked, pid),
    };
    let (addresses, reserved) = attached.map_err(|trouble| trouble.refused(&name))?;
    let addresses = if is_built_in { with_name_servers(addresses, plan) } else { addresses };
    if !(plan.connectivity.egress && plan.connectivity.egress_rules.is_empty()) {
        limit_egress(pidfd, plan, &name, &addresses)?;
    }
    let record = Attached { network: name, addresses: addresses.own.clone() };
    Ok(Some(OnNetwork { record, addresses, reserved }))
}

/// Adds the gateways as name servers if executord's name server runs on the gateways.
fn with_name_servers(addresses: Addresses, plan: &plan::Plan) -> Addresses {
    let name_servers = if plan.connectivity.name_server { addresses.gateways.clone() } else { Vec::new() };
    Addresses { name_servers, ..addresses }
}

/// Returns the addresses and name servers of a container from its record.
fn stored_addresses(stored: &Stored, plan: &plan::Plan) -> Result<Addresses, String> {
    let addresses = stored.addresses()?;
    Ok(match stored {
        Stored::Bridge(_) => with_name_servers(addresses, plan),
        Stored::Cni(_) => addresses,
    })
}

/// Applies the plan's egress rules to a container on a network.
fn limit_egress(init: BorrowedFd<'_>, plan: &plan::Plan, network: &str, addresses: &Addresses) -> Result<(), Refused> {
    egress::limit(init, plan, addresses).map_err(|error| {
        let what = if plan.connectivity.egress { "cannot restrict egress" } else { "cannot block egress" };
        let refused = failed(what, &error);
        Refused::new(Reason::Precondition, format!("network `{network}`: {}", refused.message))
    })
}

/// Returns a warning if an egress rule requests logging, but the host does not log packets of containers.
pub(crate) fn log_warning(plan: &plan::Plan) -> Option<String> {
    const SETTING: &str = "/proc/sys/net/netfilter/nf_log_all_netns";
    let rule = plan.connectivity.egress_rules.iter().position(|rule| rule.log)?;
    let is_kept = std::fs::read_to_string(SETTING).is_ok_and(|value| value.trim() == "1");
    (!is_kept).then(|| {
        format!(
            "egress_rules[{rule}].log: the kernel of this host does not log connections of containers; set \
             net.netfilter.nf_log_all_netns to 1"
        )
    })
}

/// Returns the addresses and name servers of a pod. Returns `None` if the pod has no network of its own to attach to.
///
/// # Errors
/// Returns a refusal if the stored network data cannot be read.
pub(crate) fn addresses(host: &Host, pod: &plan::Plan) -> Result<Option<Addresses>, Refused> {
    if pod.network != plan::Network::Cni {
        return Ok(None);
    }
    let stored = store::read(host, pod.id.as_str())
        .map_err(|error| failed("cannot read the pod's stored network data", &error))?;
    let parsed = stored.map_or_else(|| Ok(Addresses::default()), |stored| stored_addresses(&stored, pod));
    parsed.map(Some).map_err(|why| Refused::new(Reason::Internal, format!("network of the pod {}: {why}", pod.id)))
}

/// Replaces the egress rules of a running container with the rules of `plan` in one step. `init` is the pidfd of the
/// container's init.
///
/// # Errors
/// Returns a refusal if the rules cannot be replaced; the old rules then stay in force.
pub(crate) fn replace_egress(host: &Host, init: BorrowedFd<'_>, plan: &plan::Plan) -> Result<(), Refused> {
    let stored = match store::read(host, plan.id.as_str()) {
        Ok(Some(stored)) => stored,
        Ok(None) => return Err(failed("cannot read the stored network data", &io::ErrorKind::NotFound.into())),
        Err(error) => return Err(failed("cannot read the stored network data", &error)),
    };
    let name = stored.network();
    let addresses = stored_addresses(&stored, plan)
        .map_err(|why| Refused::new(Reason::Internal, format!("network `{name}`: {why}")))?;
    limit_egress(init, plan, name, &addresses)
}

/// Frees the published ports of a container that has exited, if the container is on a built-in network. Returns false
/// in all other cases; [`detach`] then frees the ports. [`detach`] also releases all other network resources.
///
/// # Errors
/// Returns a description of the failure if a port cannot be freed.
pub(crate) fn free_ports(host: &Host, id: &ContainerId) -> Result<bool, String> {
    match store::read(host, id.as_str()) {
        Ok(Some(Stored::Bridge(attachment))) => bridge::leave(host, &attachment).map(|()| true),
        _ => Ok(false),
    }
}

/// Detaches a container from its network. Also undoes a partial attachment. Does nothing if the container is not
/// attached. After an error, this function can be called again.
///
/// # Errors
/// Returns a description of the failure if the container cannot be detached.
pub(crate) fn detach(host: &Host, id: &ContainerId, timeouts: PluginTimeouts) -> Result<(), String> {
    let system = cni::system;
    match store::read(host, id.as_str()) {
        Ok(Some(Stored::Bridge(attachment))) => bridge::detach(host, &attachment),
        Ok(Some(Stored::Cni(attachment))) => cni::detach(host, &attachment, timeouts),
        Ok(None) => store::remove_unrecorded(host, id.as_str())
            .map_err(|error| system("cannot remove leftover network data", &error))
            .and_then(|()| cni::remove_leftovers(host, id)),
        // A power failure left an incomplete file. The interfaces no longer exist, and no plugin had been called.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) => {
            log::line(Level::Error, id.as_str(), format_args!("the network record is damaged: {error}"));
            netns::unpin(host, id)
                .and_then(|()| store::remove(host, id.as_str(), &Capabilities::default()))
                .map_err(|error| system("cannot remove leftover network data", &error))
        }
        Err(error) => Err(system("cannot read the stored network data", &error)),
    }
}

/// Detaches containers of earlier launchers from their networks. Containers in `living` have a shim and stay attached.
pub(crate) fn sweep(host: &Host, living: &BTreeSet<ContainerId>) {
    let until = Instant::now() + DETACH_TIMEOUT;
    for id in store::ids(host).into_iter().filter(|id| !living.contains(id)) {
        let timeouts =
            PluginTimeouts { until: until.min(Instant::now() + BRIEF_TIMEOUTS.1), ..PluginTimeouts::brief(host) };
        if let Err(why) = detach(host, &id, timeouts) {
            log::line(
                Level::Error,
                id.as_str(),
                format_args!("the container was not detached from its network: {why}"),
            );
        }
    }
    store::sweep(host, living);
    bridge::sweep(host);
    if !host.networks.is_empty() {
        // Load nf_tables now, and not later when the launcher detaches a container of a lost shim.
        let _ = netlink::with_host_netfilter(|_| Ok(())); // a missing nf_tables is reported on first use
    }
}

/// Returns true if a container has exited but is still attached to a CNI network because a plugin failed.
pub(crate) fn is_left_attached(host: &Host, id: &ContainerId) -> bool {
    !host.containers_run().join(id.as_str()).exists() && left_attachment(host, id).is_some()
}

fn left_attachment(host: &Host, id: &ContainerId) -> Option<Attachment> {
    match store::read(host, id.as_str()) {
        Ok(Some(Stored::Cni(attachment))) => Some(attachment),
        _ => None,
    }
}

/// Returns the containers for which [`is_left_attached`] returns true.
fn left_attached(host: &Host) -> impl Iterator<Item = ContainerId> {
    store::ids(host).into_iter().filter(|id| is_left_attached(host, id))
}

/// Returns true if [`is_left_attached`] returns true for any container.
pub(crate) fn has_left_attached(host: &Host) -> bool {
    left_attached(host).next().is_some()
}

/// Detaches the containers for which [`is_left_attached`] returns true. Failures are logged.
pub(crate) fn retry_detachments(host: &Host) {
    for id in left_attached(host) {
        let Some(attachment) = left_attachment(host, &id) else { continue };
        let (level, what) = match cni::detach_ended(host, &attachment, PluginTimeouts::whole(host)) {
            Ok(()) => (Level::Info, "the container was detached from its network by a later attempt".to_owned()),
            Err(why) => (Level::Error, format!("the container is still not detached from its network: {why}")),
        };
        log::line(level, id.as_str(), what);
    }
}

/// Kills leftover plugins of a killed process that ran [`retry_detachments`].
pub(crate) fn kill_detach_plugins(host: &Host) {
    for id in left_attached(host) {
        if let Err(why) = cni::remove_leftovers(host, &id) {
            log::line(Level::Error, id.as_str(), format_args!("plugins of the network were not killed: {why}"));
        }
    }
}

/// Lets the plugins of CNI networks remove stale attachments.
pub(crate) fn collect_garbage(host: &Host) {
    cni::gc::collect(host);
}

/// Kills leftover plugins of a killed process that ran [`collect_garbage`], and removes their cgroup.
pub(crate) fn kill_gc_plugins(host: &Host) {
    cni::gc::kill_plugins(host);
}

/// Returns true if garbage collection is enabled and needed after the detachment of a container, because DEL failed.
pub(crate) fn needs_gc(host: &Host, id: &ContainerId) -> bool {
    host.cni_gc && cni::del_has_failed(host, id)
}

/// Removes the interfaces and tables of built-in networks without containers.
pub(crate) fn remove_unused(host: &Host) {
    bridge::remove_all_unused(host);
}

/// Creates the directories for network data.
///
/// # Errors
/// Returns an error if a directory cannot be created.
pub(crate) fn make_dirs(host: &Host) -> io::Result<()> {
    store::make_dir(host)?;
    cni::make_dirs(host)?;
    netns::make_dir(host)
}
