//! Networks of CNI: a container is put onto one of the operator's networks before it runs, and taken off it again on
//! every way out.
//!
//! ```text
//! attach   by the shim, with init waiting in its network namespace
//!            config   the operator's file that the request names                          (config.rs)
//!            ports    the host's own are refused, the container's reserved                (ports.rs)
//!            store    what is needed to take it back is on disk before anything happens   (store.rs)
//!            netns    the namespace gets a name of its own on the host                    (netns.rs)
//!            ADD      each plugin in its order, its result kept                           (plugin.rs)
//!            egress   what leads beyond the network is closed, or limited, inside of it   (egress.rs)
//! detach   by the shim at the end of its container, by the launcher for a shim that was lost, by the next launcher
//!            DEL      each plugin in the opposite order, with the result that was kept
//!            then the name of the namespace goes, then what was on disk; not before every plugin has agreed
//! ```
//! Plugins are the operator's programs, as trusted as this one, and faulty all the same: their answers, their time and
//! their output have bounds. They see the host as it is: its mounts, its network namespace, and root's rights.

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
    Addresses, Attachment, Capabilities, Network, Verb, Version, container_id, supported_versions,
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

/// Time that the kernel is given to end plugins that were killed.
const KILL_PATIENCE: Duration = Duration::from_secs(5);
/// Time that a plugin may take where a launcher waits for it, which everybody waits for, and how long all of them.
const BRIEF: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));
/// Time that a launcher that begins goes on with what earlier ones left.
const SWEEP: Duration = Duration::from_secs(30);
/// Number of plugins that may use up their whole time where only the container waits for them.
const SLOW_PLUGINS: u32 = 4;

/// A container on its network.
pub(crate) struct OnNetwork {
    /// For the record.
    pub record: Attached,
    /// Addresses, gateways and name servers.
    pub addresses: Addresses,
    /// Ports of the host, kept from everybody else while this is there.
    pub reserved: Reserved,
}

/// Time that plugins may take.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    plugin: Duration,
    until: Instant,
}

impl Patience {
    /// Returns the bounds for a caller that only one container waits for.
    pub(crate) fn whole(host: &Host) -> Self {
        Self { plugin: host.cni_patience, until: Instant::now() + longest(host) }
    }

    /// Returns the bounds for a caller that every container waits for.
    pub(crate) fn brief(host: &Host) -> Self {
        Self { plugin: host.cni_patience.min(BRIEF.0), until: Instant::now() + BRIEF.1 }
    }

    fn deadline(self) -> Instant {
        self.until.min(Instant::now() + self.plugin)
    }
}

/// The longest that a container waits for its network.
pub(crate) fn longest(host: &Host) -> Duration {
    host.cni_patience * SLOW_PLUGINS
}

/// A failure on a network, and whose it is.
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
    #[error("its configuration and its plugins have no version of CNI in common")]
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

/// Puts a container onto the network that its plan names, if it names one. What fails here is taken back by
/// [`detach`], which whoever undoes the container calls.
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
    if asked.nobody_publishes(&network) {
        let why = format!("network `{}` has no plugin with the capability `portMappings`", network.name);
        return Err(violation("ports", why));
    }
    let name = network.name.clone();
    // What a container of the same id has left that could not be taken back at its end.
    detach(host, &plan.id, Patience::whole(host)).map_err(|why| {
        Refused::new(Reason::Precondition, format!("an earlier container of this id is not detached: {why}"))
    })?;
    let (addresses, reserved) =
        add_all(host, record, network, asked, init).map_err(|trouble| trouble.refused(&name))?;
    if !(plan.connectivity.egress && plan.connectivity.egress_rules.is_empty()) {
        limit_egress(host, plan, &name, &addresses)?;
    }
    let record = Attached { network: name, addresses: addresses.own.clone() };
    Ok(Some(OnNetwork { record, addresses, reserved }))
}

/// Brings the rules of egress into force that a container on a network of CNI has by its plan.
fn limit_egress(host: &Host, plan: &plan::Plan, network: &str, addresses: &Addresses) -> Result<(), Refused> {
    egress::limit(host, plan, addresses).map_err(|error| {
        let what = if plan.connectivity.egress { "egress cannot be limited" } else { "egress cannot be closed" };
        let refused = failed(what, &error);
        Refused::new(Reason::Precondition, format!("network `{network}`: {}", refused.message))
    })
}

/// Returns a warning where a rule of egress is to be logged and the host keeps no log of it.
pub(crate) fn log_warning(plan: &plan::Plan) -> Option<String> {
    const SETTING: &str = "/proc/sys/net/netfilter/nf_log_all_netns";
    let rule = plan.connectivity.egress_rules.iter().position(|rule| rule.log)?;
    let is_kept = std::fs::read_to_string(SETTING).is_ok_and(|value| value.trim() == "1");
    (!is_kept).then(|| {
        format!(
            "egress_rules[{rule}].log: the host's kernel keeps no messages of containers \
             (net.netfilter.nf_log_all_netns is not 1)"
        )
    })
}

/// Returns the addresses and name servers that a pod has on its network, if it is on one.
///
/// # Errors
/// What its network left on disk cannot be read.
pub(crate) fn addresses(host: &Host, pod: &plan::Plan) -> Result<Option<Addresses>, Refused> {
    if pod.network != plan::Network::Cni {
        return Ok(None);
    }
    let kept = store::read(host, &pod.id).map_err(|error| failed("network of the pod", &error))?;
    let result = kept.and_then(|attachment| attachment.result).unwrap_or(Value::Null);
    let parsed = Addresses::parse(&result);
    parsed.map(Some).map_err(|why| Refused::new(Reason::Internal, format!("network of the pod {}: {why}", pod.id)))
}

/// Replaces the rules of egress of a container that runs by those of `plan`, in one step.
///
/// # Errors
/// The rules that it had stay in force.
pub(crate) fn replace_egress(host: &Host, plan: &plan::Plan) -> Result<(), Refused> {
    let attachment = match store::read(host, &plan.id) {
        Ok(Some(attachment)) => attachment,
        Ok(None) => return Err(failed("what its network left on disk", &io::ErrorKind::NotFound.into())),
        Err(error) => return Err(failed("what its network left on disk", &error)),
    };
    let name = attachment.network.name;
    let addresses = Addresses::parse(&attachment.result.unwrap_or(Value::Null))
        .map_err(|why| Refused::new(Reason::Internal, format!("network `{name}`: {why}")))?;
    limit_egress(host, plan, &name, &addresses)
}

fn add_all(
    host: &Host,
    record: &ContainerRecord,
    network: Network,
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
    let lock = store::look_at_ports(host, &attachment).map_err(system("state directory"))?;
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

/// The newest version that the configuration is written for and that all of its plugins speak. Where the configuration
/// leaves no choice, the plugins are not asked.
fn negotiate(host: &Host, id: &ContainerId, network: &Network, patience: Patience) -> Result<Version, Trouble> {
    let mut versions = network.versions.clone();
    for plugin in network.plugins.iter().filter(|_| network.versions.len() > 1) {
        let answer = plugin::versions(host, &cgroup(host, id), plugin, patience.deadline())
            .map_err(|fault| Trouble::Plugin(plugin.kind.clone(), "VERSION", fault))?;
        let theirs = supported_versions(&answer).map_err(|why| Trouble::Answer(plugin.kind.clone(), why))?;
        versions.retain(|version| theirs.contains(version));
    }
    versions.last().copied().ok_or(Trouble::NoVersion)
}

/// Takes a container off its network, if it is on one or was on its way there. Nothing is left to be done after that;
/// after an error the same is done again by the next who tries.
///
/// # Errors
/// The messages of the plugins that failed.
pub(crate) fn detach(host: &Host, id: &ContainerId, patience: Patience) -> Result<(), String> {
    let plugins = cgroup(host, id);
    let system = |what: &str, error: &io::Error| format!("{what}: {}", crate::errors::plain(error));
    let attachment = match store::read(host, id) {
        Ok(Some(attachment)) => attachment,
        // One that was asked for its version only, and its shim lost.
        Ok(None) => {
            return host.hierarchies.remove(&plugins, KILL_PATIENCE).map_err(|error| error.to_string());
        }
        // Half of it was on disk when the power went: there is nothing to tell plugins.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) => {
            log::line(Level::Error, id.as_str(), format_args!("the record of its network is damaged: {error}"));
            return forget(host, id).map_err(|error| system("what it left", &error));
        }
        Err(error) => return Err(system("what it left on disk", &error)),
    };
    // A plugin whose shim was lost in the middle of it must not go on beside its own DEL.
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
    forget(host, id).map_err(|error| system("what it left", &error))
}

fn forget(host: &Host, id: &ContainerId) -> io::Result<()> {
    netns::unpin(host, id)?;
    store::remove(host, id)
}

/// Takes what earlier launchers left off its networks. `living` are the containers that have a shim.
pub(crate) fn sweep(host: &Host, living: &BTreeSet<ContainerId>) {
    let until = Instant::now() + SWEEP;
    for id in store::ids(host).into_iter().filter(|id| !living.contains(id)) {
        let patience = Patience { until: until.min(Instant::now() + BRIEF.1), ..Patience::brief(host) };
        if let Err(why) = detach(host, &id, patience) {
            log::line(Level::Error, id.as_str(), format_args!("not detached from its network: {why}"));
        }
    }
}

/// Makes the directories that all of this lies in.
///
/// # Errors
/// A directory cannot be made.
pub(crate) fn make_dirs(host: &Host) -> io::Result<()> {
    store::make_dir(host)?;
    netns::make_dir(host)
}

/// The cgroup of the plugins that work for a container: beside the containers' own, and no id begins with a dot.
fn cgroup(host: &Host, id: &ContainerId) -> PathBuf {
    host.cgroup_parent.join(format!(".network.{id}"))
}
