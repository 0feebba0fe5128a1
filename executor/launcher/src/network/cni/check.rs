//! Calls CHECK: the plugins of a network check whether a container's network is still in the state that ADD created.

use std::time::Instant;

use executor_core::cni::{Progress, Verb, Version};
use executor_core::ident::ContainerId;
use executor_sys::identity;

use super::locks::OperationLock;
use super::plugin::Call;
use super::{check_cgroup, netns};
use crate::errors::plain;
use crate::host::Host;
use crate::log::{self, Level};
use crate::network::store::{self, Stored};
use crate::network::{KILL_TIMEOUT, NetworkError, PluginTimeouts};

/// Result of CHECK for one container.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::network) enum Checked {
    /// Every plugin confirmed the attachment.
    Connected,
    /// A plugin reported a failure, or could not be called.
    Broken(String),
    /// No plugin was called; holds the reason.
    Skipped(String),
}

/// Checks a container on a CNI network. `is_disabled` is true if the network's current file disables checks; the
/// configuration at the time of ADD can disable them too. Returns `None` if the container was detached in the meantime.
pub(in crate::network) fn check(
    host: &Host,
    id: &ContainerId,
    is_disabled: bool,
    timeouts: PluginTimeouts,
) -> Option<Checked> {
    let Ok(_lock) = OperationLock::for_check(host, id) else {
        return Some(Checked::Skipped("the network is being set up or removed".into()));
    };
    let attachment = match store::read(host, id.as_str()) {
        Ok(Some(Stored::Cni(attachment))) => attachment,
        Ok(_) => return None,
        Err(error) => return Some(Checked::Broken(format!("cannot read the network record: {}", plain(&error)))),
    };
    let skipped = match attachment.progress {
        Progress::Adding => Some("ADD has not completed".into()),
        Progress::DelFailed => Some("DEL has failed and will be retried".into()),
        Progress::Added if is_disabled || attachment.network.disable_check => {
            Some("the configuration sets disableCheck".into())
        }
        Progress::Added if attachment.version < Version::V0_4_0 => {
            Some(format!("CNI {} has no CHECK", attachment.version.name()))
        }
        Progress::Added => None,
    };
    if let Some(why) = skipped {
        return Some(Checked::Skipped(why));
    }
    if !identity::boot_id().is_ok_and(|boot| boot == attachment.boot_id) || !netns::is_pinned(host, id) {
        return Some(Checked::Broken("the network namespace no longer exists".into()));
    }
    let cgroup = check_cgroup(host, id);
    if let Err(error) = host.hierarchies.make_memory(&cgroup) {
        return Some(Checked::Broken(format!("cannot create the cgroup of the plugins: {}", plain(&error))));
    }
    let mut checked = Checked::Connected;
    for plugin in &attachment.network.plugins {
        if Instant::now() >= timeouts.until {
            checked = Checked::Broken("the plugins exceeded their time limit".into());
            break;
        }
        let netns = Some(attachment.netns.as_path());
        let (cgroup, until) = (&*cgroup, timeouts.deadline());
        let call = Call { host, cgroup, verb: Verb::Check, attachment: &attachment, netns, until };
        if let Err(fault) = call.execute(plugin, attachment.result.as_ref()) {
            checked = Checked::Broken(NetworkError::Plugin(plugin.kind.clone(), "CHECK", fault).to_string());
            break;
        }
    }
    if let Err(error) = host.hierarchies.remove(&cgroup, KILL_TIMEOUT) {
        log::line(Level::Error, id.as_str(), format_args!("check of the network: {error}"));
    }
    Some(checked)
}
