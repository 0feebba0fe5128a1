//! Attaches containers to networks of the operator's CNI plugins, and detaches them.
//!
//! ```text
//! attach   in the shim, while init waits in its network namespace
//!            config   reads the operator's file for the requested network                  (config.rs)
//!            store    writes the record for detaching to disk, before anything else        (store.rs)
//!            netns    mounts the network namespace at a path on the host                   (netns.rs)
//!            ADD      calls each plugin in order, and stores the result                    (plugin.rs)
//! detach     DEL      calls each plugin in reverse order, with the stored result
//!            after every plugin has succeeded, removes the namespace's path, then the record; after a failure the
//!            launcher tries again in a separate process
//! check      CHECK    calls each plugin in order, with the stored result                   (check.rs)
//! collect    GC       if enabled by the operator; passes the attachments to keep           (gc.rs)
//!
//! versions   VERSION, only if the configuration leaves a choice; responses are cached      (versions.rs)
//! locks      no parallel operations on one attachment, no GC during ADD or DEL             (locks.rs)
//! ```
//! Plugins are programs of the operator. They are trusted, but may have bugs, so their output and running time are
//! limited. Plugins run as root in the host's mount and network namespaces.

pub(super) mod check;
pub(super) mod config;
pub(super) mod gc;
mod locks;
mod plugin;
mod versions;

use std::io;
use std::path::PathBuf;

use executor_core::cni::{Addresses, Attachment, Capabilities, CniNetwork, Progress, Verb, container_id};
use executor_core::ident::ContainerId;
use executor_core::record::ContainerRecord;
use executor_sys::identity;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::ports::Reserved;
use super::store::Stored;
use super::{KILL_TIMEOUT, NetworkError, PluginTimeouts, netns, store};
use crate::files;
use crate::host::Host;
use locks::OperationLock;
use plugin::Call;
pub(super) use plugin::Fault;

/// Attaches a container to a network. `init` is the pid of the container's init.
pub(super) fn attach(
    host: &Host,
    record: &ContainerRecord,
    network: CniNetwork,
    asked: Capabilities,
    init: i32,
) -> Result<(Addresses, Reserved), NetworkError> {
    let id = &record.plan.id;
    let system = |what: &'static str| move |error: io::Error| NetworkError::System(what, error);
    let timeouts = PluginTimeouts::whole(host);
    let _lock = OperationLock::for_container(host, id, timeouts.deadline(), || Ok(()))
        .map_err(system("cannot lock the network"))?;
    let plugins = cgroup(host, id);
    host.hierarchies.make_memory(&plugins).map_err(system("cannot create the cgroup of the plugins"))?;
    let version = versions::negotiate(host, &plugins, &network, timeouts)?;
    let unique = Sha256::digest(format!("{}\0{id}\0{}", host.run_dir.display(), record.created_at.0));
    let mut attachment = Attachment {
        id: id.clone(),
        cni_id: container_id(id, &hex::encode(&unique[..6])),
        netns: netns::path(host, id),
        boot_id: record.shim.boot_id.clone(),
        network,
        version,
        asked,
        arguments: record.plan.connectivity.cni.as_ref().map(|cni| cni.arguments.clone()).unwrap_or_default(),
        result: None,
        progress: Progress::Adding,
    };
    let lock = store::check_ports(host, id.as_str(), &attachment.asked)
        .map_err(system("cannot check the ports in the state directory"))?;
    let lock = lock.map_err(|(port, other)| NetworkError::Port(port, other))?;
    let reserved = Reserved::from_ports(&record.plan.connectivity.ports)?;
    // Data of the plugins may survive a reboot, so the record must survive too.
    let durable = store::Durability::Synced;
    store::write(host, id.as_str(), &Stored::Cni(attachment.clone()), durable)
        .map_err(system("cannot write the stored network data"))?;
    drop(lock);
    netns::pin(host, id, init).map_err(system("cannot pin the container's network namespace"))?;
    let last = attachment.network.plugins.len() - 1; // a network has at least one plugin
    for (index, plugin) in attachment.network.plugins.clone().into_iter().enumerate() {
        let call = Call {
            host,
            cgroup: &plugins,
            verb: Verb::Add,
            attachment: &attachment,
            netns: Some(&attachment.netns),
            until: timeouts.deadline(),
        };
        let result = call.execute(&plugin, attachment.result.as_ref()).map_err(|fault| {
            if fault.is_other_version() {
                versions::delete_cached(host, &attachment.network);
            }
            NetworkError::Plugin(plugin.kind.clone(), "ADD", fault)
        })?;
        attachment.result = Some(result);
        if index == last {
            attachment.progress = Progress::Added;
        }
        let stored = Stored::Cni(attachment.clone());
        store::write(host, id.as_str(), &stored, store::Durability::Unsynced)
            .map_err(system("cannot write the stored network data"))?;
    }
    let result = attachment.result.unwrap_or(Value::Null);
    let last = attachment.network.plugins.last().map(|plugin| plugin.kind.clone()).unwrap_or_default();
    let addresses = Addresses::parse(&result).map_err(|why| NetworkError::Answer(last, why))?;
    Ok((addresses, reserved))
}

/// Detaches a container from its network. After an error, this function can be called again.
///
/// # Errors
/// Returns the plugins' messages if plugins failed, or a description of another failure.
pub(super) fn detach(host: &Host, attachment: &Attachment, timeouts: PluginTimeouts) -> Result<(), String> {
    let kill = || kill_plugins(host, &attachment.id);
    let _lock = OperationLock::for_container(host, &attachment.id, timeouts.deadline(), kill)
        .map_err(|error| system("cannot lock the network", &error))?;
    detach_locked(host, attachment, timeouts)
}

/// Detaches an exited container from its network. Does not wait for other operations.
///
/// # Errors
/// Returns the same errors as [`detach`].
pub(super) fn detach_ended(host: &Host, attachment: &Attachment, timeouts: PluginTimeouts) -> Result<(), String> {
    let lock = OperationLock::try_for_container(host, &attachment.id);
    let _lock = lock.map_err(|error| system("cannot lock the network", &error))?;
    kill_plugins(host, &attachment.id).map_err(|error| system("cannot kill the plugins", &error))?;
    detach_locked(host, attachment, timeouts)
}

/// Kills plugins that a lost shim or a killed process has started. DEL must not run in parallel with these plugins.
fn kill_plugins(host: &Host, id: &ContainerId) -> io::Result<()> {
    let cgroups = [cgroup(host, id), check_cgroup(host, id)];
    cgroups.iter().try_for_each(|cgroup| host.hierarchies.kill_all(cgroup, KILL_TIMEOUT))
}

/// Detaches a container whose lock the caller holds. Does nothing if the container has already been detached.
fn detach_locked(host: &Host, attachment: &Attachment, timeouts: PluginTimeouts) -> Result<(), String> {
    let id = &attachment.id;
    let attachment = &match store::read(host, id.as_str()) {
        Ok(Some(Stored::Cni(current))) if current.cni_id == attachment.cni_id => current,
        Ok(_) => return Ok(()),
        Err(error) => return Err(system("cannot read the stored network data", &error)),
    };
    let plugins = cgroup(host, id);
    host.hierarchies
        .make_memory(&plugins)
        .map_err(|error| system("cannot create the cgroup of the plugins", &error))?;
    let this_boot = identity::boot_id().is_ok_and(|boot| boot == attachment.boot_id);
    let netns = (this_boot && netns::is_pinned(host, id)).then_some(attachment.netns.as_path());
    let mut troubles = Vec::new();
    for plugin in attachment.network.plugins.iter().rev() {
        let until = timeouts.deadline();
        let call = Call { host, cgroup: &plugins, verb: Verb::Del, attachment, netns, until };
        if let Err(fault) = call.execute(plugin, attachment.result.as_ref()) {
            troubles.push(NetworkError::Plugin(plugin.kind.clone(), "DEL", fault).to_string());
        }
    }
    for cgroup in [&plugins, &check_cgroup(host, id)] {
        if let Err(error) = host.hierarchies.remove(cgroup, KILL_TIMEOUT) {
            troubles.push(error.to_string());
        }
    }
    if !troubles.is_empty() {
        let failed = Attachment { progress: Progress::DelFailed, ..attachment.clone() };
        if attachment.progress != Progress::DelFailed
            && let Err(error) = store::write(host, id.as_str(), &Stored::Cni(failed), store::Durability::Unsynced)
        {
            troubles.push(system("cannot write the stored network data", &error));
        }
        return Err(format!("network `{}`: {}", attachment.network.name, troubles.join("; ")));
    }
    netns::unpin(host, id)
        .and_then(|()| store::remove(host, id.as_str(), &attachment.asked))
        .map_err(|error| system("cannot remove leftover network data", &error))
}

pub(super) fn system(what: &str, error: &io::Error) -> String {
    format!("{what}: {}", crate::errors::plain(error))
}

/// Kills a container's leftover plugins, and removes their cgroup. If no network data is stored, these plugins were
/// called only with VERSION.
///
/// # Errors
/// Returns an error if the cgroup of the plugins cannot be removed.
pub(super) fn remove_leftovers(host: &Host, id: &ContainerId) -> Result<(), String> {
    host.hierarchies.remove(&cgroup(host, id), KILL_TIMEOUT).map_err(|error| error.to_string())
}

pub(super) fn del_has_failed(host: &Host, id: &ContainerId) -> bool {
    let stored = store::read(host, id.as_str());
    matches!(stored, Ok(Some(Stored::Cni(Attachment { progress: Progress::DelFailed, .. }))))
}

/// Creates the lock file, its directory, and the directory of cached plugin versions.
pub(super) fn make_dirs(host: &Host) -> io::Result<()> {
    files::ensure_dir(&dir(host), 0o700)?;
    files::ensure_dir(&versions::dir(host), 0o700)?;
    locks::open(host).map(drop)
}

fn dir(host: &Host) -> PathBuf {
    host.run_dir.join("cni")
}

/// Returns the cgroup for the plugins of a container. This cgroup is next to the containers' cgroups; container ids do
/// not begin with a dot.
fn cgroup(host: &Host, id: &ContainerId) -> PathBuf {
    host.cgroup_parent.join(format!(".network.{id}"))
}

/// Returns the cgroup for plugins that check a container. This cgroup is separate from the cgroup of ADD: when a
/// hanging check is killed, processes that ADD started keep running.
fn check_cgroup(host: &Host, id: &ContainerId) -> PathBuf {
    host.cgroup_parent.join(format!(".check.{id}"))
}

/// Returns the cgroup for plugins that collect garbage.
fn gc_cgroup(host: &Host) -> PathBuf {
    host.cgroup_parent.join(".gc")
}
