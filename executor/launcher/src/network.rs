//! CNI networks: a container is attached to one of the operator's networks before it runs, and is always detached at
//! its end.
//!
//! ```text
//! attach   by the shim, with init waiting in its network namespace
//!            config   the operator's file that the request names                          (config.rs)
//!            ports    the host's ports are refused, the container's are reserved          (ports.rs)
//!            store    the data for detaching is on disk before anything happens           (store.rs)
//!            netns    the namespace gets its own name on the host                         (netns.rs)
//!            ADD      each plugin in order, with its result kept                          (plugin.rs)
//!            egress   traffic beyond the network is blocked or limited, from inside       (egress.rs)
//! detach   by the shim at the end of its container, by the launcher for a lost shim, by the next launcher
//!            DEL      each plugin in reverse order, with the kept result
//!            then the namespace's name is removed, then the data on disk; only after every plugin has succeeded
//! ```
//! Plugins are the operator's programs, trusted like this one but possibly faulty: their answers, time and output are
//! limited. They run in the host's mount and network namespaces with root's rights.

mod config;
mod egress;
mod netns;
mod nft;
mod plugin;
mod ports;
mod store;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use executor_core::cni::{
    Addresses, Attachment, Capabilities, CniNetwork, Verb, Version, container_id, supported_versions,
};
use executor_core::ident::ContainerId;
use executor_core::plan;
use executor_core::protocol::{Reason, Refused};
use executor_core::record::{Attached, ContainerRecord};
use executor_core::validate::Violation;
use executor_sys::identity;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::errors::failed;
use crate::host::Host;
use crate::log::{self, Level};
use plugin::{Call, Fault};
pub(crate) use ports::Reserved;

/// Time limit for the kernel to end killed plugins.
const KILL_PATIENCE: Duration = Duration::from_secs(5);
/// Time limits for one plugin and for all together while the launcher waits, which blocks every container.
const BRIEF: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));
/// Time limit for a starting launcher to detach containers of earlier ones.
const SWEEP: Duration = Duration::from_secs(30);
/// Number of plugins that may use their full time if only one container waits.
const SLOW_PLUGINS: u32 = 4;

/// A container attached to its network.
pub(crate) struct OnNetwork {
    /// Data for the container's record.
    pub record: Attached,
    /// Addresses, gateways and name servers.
    pub addresses: Addresses,
    /// Reserved host ports, released on drop.
    pub reserved: Reserved,
}

/// Time limits for plugins.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    plugin: Duration,
    until: Instant,
}

impl Patience {
    /// Returns the limits for a caller that only one container waits for.
    pub(crate) fn whole(host: &Host) -> Self {
        Self { plugin: host.cni_patience, until: Instant::now() + longest(host) }
    }

    /// Returns the limits for a caller that every container waits for.
    pub(crate) fn brief(host: &Host) -> Self {
        Self { plugin: host.cni_patience.min(BRIEF.0), until: Instant::now() + BRIEF.1 }
    }

    fn deadline(self) -> Instant {
        self.until.min(Instant::now() + self.plugin)
    }
}

/// Returns the longest time that a container waits for its network.
pub(crate) fn longest(host: &Host) -> Duration {
    host.cni_patience * SLOW_PLUGINS
}

/// A network failure by its cause.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("plugin `{0}`, {1}: {2}")]
    Plugin(String, &'static str, Fault),
    #[error("plugin `{0}`: {1}")]
    Answer(String, String),
    #[error("port {0} of the host is published by container `{1}`")]
    Port(String, ContainerId),
    #[error("{0}: {1}")]
    HostPort(String, &'static str),
    #[error("its configuration and its plugins support no common version of CNI")]
    NoVersion,
    #[error("{what}: {why}", what = .0, why = crate::errors::plain(.1))]
    System(&'static str, io::Error),
}

impl Trouble {
    fn refused(&self, network: &str) -> Refused {
        if let Self::Port(..) | Self::HostPort(..) = self {
            return Refused::from_fields(Reason::Precondition, &[Violation::new("ports", self.to_string())]);
        }
        if let Self::System(what, error) = self {
            return failed(&format!("network `{network}`: {what}"), error);
        }
        let reason = match self {
            Self::System(..) | Self::Plugin(_, _, Fault::System(..)) => Reason::Internal,
            Self::Plugin(..) | Self::Answer(..) | Self::Port(..) | Self::HostPort(..) | Self::NoVersion => {
                Reason::Precondition
            }
        };
        Refused::new(reason, format!("network `{network}`: {self}"))
    }
}

/// Attaches a container to the network that its plan names, if any. A failed attachment is undone by [`detach`], which
/// the caller calls when it undoes the container.
pub(crate) fn attach(host: &Host, record: &ContainerRecord, init: i32) -> Result<Option<OnNetwork>, Refused> {
    let plan = &record.plan;
    if plan.network != plan::Network::Cni || !plan.makes_network() {
        return Ok(None);
    }
    let violation =
        |field: &str, why: String| Refused::from_fields(Reason::Precondition, &[Violation::new(field, why)]);
    let wanted = &plan.connectivity.network_name;
    let network = config::find(&host.policy.cni_conf_dir, wanted).map_err(|why| violation("network_name", why))?;
    let asked = Capabilities::from_asked(&plan.connectivity);
    if asked.lacks_port_plugin(&network) {
        let why = format!("network `{}` has no plugin with the capability `portMappings`", network.name);
        return Err(violation("ports", why));
    }
    let name = network.name.clone();
    // Leftovers of a container with the same id that could not be detached at its end.
    detach(host, &plan.id, Patience::whole(host)).map_err(|why| {
        Refused::new(Reason::Precondition, format!("an earlier container with this id is still on its network: {why}"))
    })?;
    let (addresses, reserved) =
        add_all(host, record, network, asked, init).map_err(|trouble| trouble.refused(&name))?;
    if !(plan.connectivity.egress && plan.connectivity.egress_rules.is_empty()) {
        limit_egress(host, plan, &name, &addresses)?;
    }
    let record = Attached { network: name, addresses: addresses.own.clone() };
    Ok(Some(OnNetwork { record, addresses, reserved }))
}

/// Applies the plan's egress rules to a container on a CNI network.
fn limit_egress(host: &Host, plan: &plan::Plan, network: &str, addresses: &Addresses) -> Result<(), Refused> {
    egress::limit(host, plan, addresses).map_err(|error| {
        let what = if plan.connectivity.egress { "egress cannot be limited" } else { "egress cannot be closed" };
        let refused = failed(what, &error);
        Refused::new(Reason::Precondition, format!("network `{network}`: {}", refused.message))
    })
}

/// Returns a warning if an egress rule asks for logging and the host keeps no log of it.
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

/// Returns the addresses and name servers of a pod on its network, if it has one.
///
/// # Errors
/// Returns a refusal if the stored network data cannot be read.
pub(crate) fn addresses(host: &Host, pod: &plan::Plan) -> Result<Option<Addresses>, Refused> {
    if pod.network != plan::Network::Cni {
        return Ok(None);
    }
    let kept = store::read(host, &pod.id).map_err(|error| failed("network of the pod", &error))?;
    let result = kept.and_then(|attachment| attachment.result).unwrap_or(Value::Null);
    let parsed = Addresses::parse(&result);
    parsed.map(Some).map_err(|why| Refused::new(Reason::Internal, format!("network of the pod {}: {why}", pod.id)))
}

/// Replaces the egress rules of a running container by those of `plan` in one step.
///
/// # Errors
/// Returns the failure; the old rules then stay in force.
pub(crate) fn replace_egress(host: &Host, plan: &plan::Plan) -> Result<(), Refused> {
    let attachment = match store::read(host, &plan.id) {
        Ok(Some(attachment)) => attachment,
        Ok(None) => return Err(failed("stored network data", &io::ErrorKind::NotFound.into())),
        Err(error) => return Err(failed("stored network data", &error)),
    };
    let name = attachment.network.name;
    let addresses = Addresses::parse(&attachment.result.unwrap_or(Value::Null))
        .map_err(|why| Refused::new(Reason::Internal, format!("network `{name}`: {why}")))?;
    limit_egress(host, plan, &name, &addresses)
}

fn add_all(
    host: &Host,
    record: &ContainerRecord,
    network: CniNetwork,
    asked: Capabilities,
    init: i32,
) -> Result<(Addresses, Reserved), Trouble> {
    let id = &record.plan.id;
    let system = |what: &'static str| move |error: io::Error| Trouble::System(what, error);
    let patience = Patience::whole(host);
    host.hierarchies.make_memory(&cgroup(host, id)).map_err(system("cgroup of the plugins"))?;
    let version = negotiate(host, id, &network, patience)?;
    let unique = Sha256::digest(format!("{}\0{id}\0{}", host.run_dir.display(), record.created_at.0));
    let mut attachment = Attachment {
        id: id.clone(),
        cni_id: container_id(id, &hex::encode(&unique[..6])),
        netns: netns::path(host, id),
        boot_id: record.shim.boot_id.clone(),
        network,
        version,
        asked,
        result: None,
    };
    let lock = store::check_ports(host, &attachment).map_err(system("state directory"))?;
    let lock = lock.map_err(|(port, other)| Trouble::Port(port, other))?;
    let reserved = Reserved::from_ports(&record.plan.connectivity.ports)?;
    store::write_first(host, &attachment).map_err(system("state directory"))?;
    drop(lock);
    netns::pin(host, id, init).map_err(system("network namespace"))?;
    for plugin in attachment.network.plugins.clone() {
        let call = Call {
            host,
            cgroup: &cgroup(host, id),
            verb: Verb::Add,
            attachment: &attachment,
            netns: Some(&attachment.netns),
            until: patience.deadline(),
        };
        let result = call
            .execute(&plugin, attachment.result.as_ref())
            .map_err(|fault| Trouble::Plugin(plugin.kind.clone(), "ADD", fault))?;
        attachment.result = Some(result);
        store::write(host, &attachment).map_err(system("state directory"))?;
    }
    let result = attachment.result.unwrap_or(Value::Null);
    let last = attachment.network.plugins.last().map(|plugin| plugin.kind.clone()).unwrap_or_default();
    let addresses = Addresses::parse(&result).map_err(|why| Trouble::Answer(last, why))?;
    Ok((addresses, reserved))
}

/// Returns the newest version that the configuration is written for and all of its plugins support. Plugins are asked
/// only if the configuration leaves a choice.
fn negotiate(host: &Host, id: &ContainerId, network: &CniNetwork, patience: Patience) -> Result<Version, Trouble> {
    let mut versions = network.versions.clone();
    for plugin in network.plugins.iter().filter(|_| network.versions.len() > 1) {
        let answer = plugin::versions(host, &cgroup(host, id), plugin, patience.deadline())
            .map_err(|fault| Trouble::Plugin(plugin.kind.clone(), "VERSION", fault))?;
        let theirs = supported_versions(&answer).map_err(|why| Trouble::Answer(plugin.kind.clone(), why))?;
        versions.retain(|version| theirs.contains(version));
    }
    versions.last().copied().ok_or(Trouble::NoVersion)
}

/// Detaches a container from its network, if it is attached or was being attached. After success nothing is left to do;
/// after an error a later call tries again.
///
/// # Errors
/// Returns the messages of the plugins that failed.
pub(crate) fn detach(host: &Host, id: &ContainerId, patience: Patience) -> Result<(), String> {
    let plugins = cgroup(host, id);
    let system = |what: &str, error: &io::Error| format!("{what}: {}", crate::errors::plain(error));
    let attachment = match store::read(host, id) {
        Ok(Some(attachment)) => attachment,
        // Only the version was requested from a plugin when the shim was lost.
        Ok(None) => {
            return host.hierarchies.remove(&plugins, KILL_PATIENCE).map_err(|error| error.to_string());
        }
        // The file is incomplete after a power failure: no plugin was called.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) => {
            log::line(Level::Error, id.as_str(), format_args!("the record of its network is damaged: {error}"));
            return forget(host, id).map_err(|error| system("leftover network data", &error));
        }
        Err(error) => return Err(system("stored network data", &error)),
    };
    // A running plugin of a lost shim must not overlap with its own DEL.
    host.hierarchies
        .kill_all(&plugins, KILL_PATIENCE)
        .and_then(|()| host.hierarchies.make_memory(&plugins))
        .map_err(|error| system("cgroup of the plugins", &error))?;
    let this_boot = identity::boot_id().is_ok_and(|boot| boot == attachment.boot_id);
    let netns = (this_boot && netns::is_pinned(host, id)).then_some(attachment.netns.as_path());
    let mut troubles = Vec::new();
    for plugin in attachment.network.plugins.iter().rev() {
        let until = patience.deadline();
        let call = Call { host, cgroup: &plugins, verb: Verb::Del, attachment: &attachment, netns, until };
        if let Err(fault) = call.execute(plugin, attachment.result.as_ref()) {
            troubles.push(Trouble::Plugin(plugin.kind.clone(), "DEL", fault).to_string());
        }
    }
    if let Err(error) = host.hierarchies.remove(&plugins, KILL_PATIENCE) {
        troubles.push(error.to_string());
    }
    if !troubles.is_empty() {
        return Err(format!("network `{}`: {}", attachment.network.name, troubles.join("; ")));
    }
    forget(host, id).map_err(|error| system("leftover network data", &error))
}

fn forget(host: &Host, id: &ContainerId) -> io::Result<()> {
    netns::unpin(host, id)?;
    store::remove(host, id)
}

/// Detaches containers of earlier launchers from their networks. `living` are the containers that have a shim.
pub(crate) fn sweep(host: &Host, living: &BTreeSet<ContainerId>) {
    let until = Instant::now() + SWEEP;
    for id in store::ids(host).into_iter().filter(|id| !living.contains(id)) {
        let patience = Patience { until: until.min(Instant::now() + BRIEF.1), ..Patience::brief(host) };
        if let Err(why) = detach(host, &id, patience) {
            log::line(Level::Error, id.as_str(), format_args!("not detached from its network: {why}"));
        }
    }
}

/// Makes the directories for network data.
///
/// # Errors
/// Returns an error if a directory cannot be made.
pub(crate) fn make_dirs(host: &Host) -> io::Result<()> {
    store::make_dir(host)?;
    netns::make_dir(host)
}

/// Returns the cgroup of the plugins that run for a container: next to the containers' cgroups; no id begins with a
/// dot.
fn cgroup(host: &Host, id: &ContainerId) -> PathBuf {
    host.cgroup_parent.join(format!(".network.{id}"))
}
