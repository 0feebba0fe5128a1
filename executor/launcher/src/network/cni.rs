//! Networks of the operator's CNI plugins.
//!
//! ```text
//! attach   by the shim, with init waiting in its network namespace
//!            config   the operator's file that the request names                          (config.rs)
//!            store    the data for detaching is on disk before anything happens           (store.rs)
//!            netns    the namespace gets its own name on the host                         (netns.rs)
//!            ADD      each plugin in order, with its result kept                          (plugin.rs)
//! detach     DEL      each plugin in reverse order, with the kept result
//!            then the namespace's name is removed, then the data on disk; only after every plugin has succeeded
//! ```
//! Plugins are the operator's programs, trusted like this one but possibly faulty: their answers, time and output are
//! limited. They run in the host's mount and network namespaces with root's rights.

pub(super) mod config;
mod plugin;

use std::io;
use std::path::PathBuf;

use executor_core::cni::{
    Addresses, Attachment, Capabilities, CniNetwork, Verb, Version, container_id, supported_versions,
};
use executor_core::ident::ContainerId;
use executor_core::record::ContainerRecord;
use executor_sys::identity;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::ports::Reserved;
use super::store::Stored;
use super::{KILL_PATIENCE, Patience, Trouble, netns, store};
use crate::host::Host;
use plugin::Call;
pub(super) use plugin::Fault;

/// Attaches a container, whose init has the pid `init`, to a network.
pub(super) fn attach(
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
    let lock = store::check_ports(host, id.as_str(), &attachment.asked).map_err(system("state directory"))?;
    let lock = lock.map_err(|(port, other)| Trouble::Port(port, other))?;
    let reserved = Reserved::from_ports(&record.plan.connectivity.ports)?;
    // Plugins' own data may survive a reboot.
    let durable = store::Durability::Synced;
    store::write(host, id.as_str(), &Stored::Cni(attachment.clone()), durable).map_err(system("state directory"))?;
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
        let stored = Stored::Cni(attachment.clone());
        store::write(host, id.as_str(), &stored, store::Durability::Unsynced).map_err(system("state directory"))?;
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

/// Detaches a container from its network. After an error a later call tries again.
///
/// # Errors
/// Returns the messages of the plugins that failed.
pub(super) fn detach(host: &Host, attachment: &Attachment, patience: Patience) -> Result<(), String> {
    let id = &attachment.id;
    let plugins = cgroup(host, id);
    let system = |what: &str, error: &io::Error| format!("{what}: {}", crate::errors::plain(error));
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
        let call = Call { host, cgroup: &plugins, verb: Verb::Del, attachment, netns, until };
        if let Err(fault) = call.execute(plugin, attachment.result.as_ref()) {
            troubles.push(Trouble::Plugin(plugin.kind.clone(), "DEL", fault).to_string());
        }
    }
    if let Err(error) = remove_leftovers(host, id) {
        troubles.push(error);
    }
    if !troubles.is_empty() {
        return Err(format!("network `{}`: {}", attachment.network.name, troubles.join("; ")));
    }
    netns::unpin(host, id)
        .and_then(|()| store::remove(host, id.as_str(), &attachment.asked))
        .map_err(|error| system("leftover network data", &error))
}

/// Ends the plugins of a container, of which only the version was requested when the shim was lost.
///
/// # Errors
/// Returns the failure of removing their cgroup.
pub(super) fn remove_leftovers(host: &Host, id: &ContainerId) -> Result<(), String> {
    host.hierarchies.remove(&cgroup(host, id), KILL_PATIENCE).map_err(|error| error.to_string())
}

/// Returns the cgroup of the plugins that run for a container: next to the containers' cgroups; no id begins with a
/// dot.
fn cgroup(host: &Host, id: &ContainerId) -> PathBuf {
    host.cgroup_parent.join(format!(".network.{id}"))
}
