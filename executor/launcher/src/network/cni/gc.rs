//! Calls GC, with which plugins remove resources that belong to no valid attachment. Runs only if the operator sets
//! `launcher.cni_gc`, because GC also removes attachments of other runtimes that use the same networks.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use executor_core::cni::{CniNetwork, INTERFACE, Plugin, Progress, Version, gc_stdin};

use super::locks::OperationLock;
use super::{config, gc_cgroup, plugin, versions};
use crate::errors::plain;
use crate::host::Host;
use crate::log::{self, Level};
use crate::network::store::{self, Stored};
use crate::network::{KILL_TIMEOUT, NetworkError, PluginTimeouts, longest};

/// Calls GC for each network of CNI 1.1.0 or newer. Failures are logged.
pub(in crate::network) fn collect(host: &Host) {
    if let Err(why) = collect_all(host) {
        log::line(Level::Error, "", format_args!("garbage collection of CNI networks failed: {why}"));
    }
}

/// Kills the plugins of a killed garbage collection process, and removes their cgroup.
pub(in crate::network) fn kill_plugins(host: &Host) {
    if let Err(error) = host.hierarchies.remove(&gc_cgroup(host), KILL_TIMEOUT) {
        log::line(Level::Error, "", format_args!("garbage collection of CNI networks: {error}"));
    }
}

fn collect_all(host: &Host) -> Result<(), String> {
    // The limit is the longest time that plugins of a running operation may take.
    let until = Instant::now() + longest(host);
    let _lock = OperationLock::for_collection(host, until).map_err(|error| plain(&error))?;
    // GC of all networks may take only as long as one plugin, because starting containers wait for GC.
    let timeouts = PluginTimeouts { plugin: host.plugin_timeout, until: Instant::now() + host.plugin_timeout };
    let cgroup = gc_cgroup(host);
    host.hierarchies
        .kill_all(&cgroup, KILL_TIMEOUT)
        .and_then(|()| host.hierarchies.make_memory(&cgroup))
        .map_err(|error| plain(&error))?;
    let collected = valid_attachments(host).and_then(|valid| {
        let dir = &host.policy.cni_conf_dir;
        let mut seen = BTreeSet::new();
        for (_, network) in config::read_all(dir).map_err(|error| format!("{}: {}", dir.display(), plain(&error)))? {
            // The list of networks reports unusable files.
            let Ok(network) = network else { continue };
            if !seen.insert(network.name.clone()) || host.networks.contains_key(&network.name) {
                continue; // this file is not used
            }
            if timeouts.until.saturating_duration_since(Instant::now()) == Duration::ZERO {
                return Err(format!("the time limit expired before network `{}` was processed", network.name));
            }
            for why in collect_network(host, (&cgroup, timeouts), &network, &valid) {
                let why = format_args!("garbage collection of network `{}` failed: {why}", network.name);
                log::line(Level::Error, "", why);
            }
        }
        Ok(())
    });
    let removed = host.hierarchies.remove(&cgroup, KILL_TIMEOUT).map_err(|error| error.to_string());
    collected.and(removed)
}

/// An attachment to keep: network name, and the container id that was passed to the plugins.
type ValidAttachment = (String, String);

/// Returns the attachments of all networks, except attachments whose DEL has failed.
///
/// # Errors
/// Returns an error if a record cannot be read, because GC would remove its attachment.
fn valid_attachments(host: &Host) -> Result<Vec<ValidAttachment>, String> {
    let mut valid = Vec::new();
    for id in store::ids(host) {
        match store::read(host, id.as_str()) {
            Ok(Some(Stored::Cni(attachment))) if attachment.progress != Progress::DelFailed => {
                valid.push((attachment.network.name, attachment.cni_id));
            }
            Ok(_) => {}
            Err(error) => {
                return Err(format!("cannot read the network record of {id}: {}; nothing is removed", plain(&error)));
            }
        }
    }
    Ok(valid)
}

/// Calls all plugins of a network, even after a failure, and returns the failures.
fn collect_network(
    host: &Host,
    (cgroup, timeouts): (&Path, PluginTimeouts),
    network: &CniNetwork,
    valid: &[ValidAttachment],
) -> Vec<String> {
    if network.disable_gc || !network.versions.contains(&Version::V1_1_0) {
        return Vec::new();
    }
    let version = match versions::negotiate(host, cgroup, network, timeouts) {
        Ok(version) if version >= Version::V1_1_0 => version,
        Ok(_) | Err(NetworkError::NoVersion) => return Vec::new(),
        Err(trouble) => return vec![trouble.to_string()],
    };
    let valid = || valid.iter().filter(|(name, _)| *name == network.name).map(|(_, id)| (&**id, INTERFACE));
    let failure = |plugin: &Plugin| {
        let config = gc_stdin(network, plugin, version, valid());
        let removed = plugin::remove_stale(host, cgroup, plugin, &config, timeouts.deadline());
        removed.err().map(|fault| NetworkError::Plugin(plugin.kind.clone(), "GC", fault).to_string())
    };
    network.plugins.iter().filter_map(failure).collect()
}
