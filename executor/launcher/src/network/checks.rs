//! Checks the containers on a CNI network, for the API.
//!
//! Input: the name of a network, the operator's CNI files, and the records of containers. Output: a memory file with
//! [`NetworkChecks`]. Containers are checked one after the other, for at most [`CHECK_PATIENCE`].

use std::time::Instant;

use executor_core::ident::ContainerId;
use executor_core::protocol::{
    AttachmentCheck, CHECK_PATIENCE, CHECKS_MAX, CheckNetwork, CheckOutcome, NETWORK_WARNING_LENGTH, NetworkChecks,
    Reason, Refused,
};
use executor_sys::memfile::MemFile;
use prost::Message as _;

use super::cni::check::{self, Checked};
use super::cni::config;
use super::list::shortened;
use super::store::{self, Stored};
use super::{BRIEF_TIMEOUTS, PluginTimeouts};
use crate::errors::failed;
use crate::host::Host;

/// Calls the plugins of a network to check each of its containers.
///
/// # Errors
/// Returns a refusal if no CNI network has this name, or if memory is short.
pub(crate) fn check(host: &Host, request: &CheckNetwork) -> Result<MemFile, Refused> {
    let name = &request.name;
    if host.networks.contains_key(name) {
        let why = format!("network `{name}` is built in; only networks of CNI plugins are checked");
        return Err(Refused::new(Reason::Precondition, why));
    }
    let mut ids: Vec<ContainerId> = store::ids(host).into_iter().filter(|id| is_on(host, id, name)).collect();
    ids.sort_unstable();
    let is_disabled = match config::find(&host.policy.cni_conf_dir, name) {
        Ok(network) => network.disable_check,
        Err(why) if ids.is_empty() => return Err(Refused::new(Reason::NotFound, why)),
        Err(_) => false, // containers stay attached to a removed network
    };
    let timeouts =
        PluginTimeouts { plugin: host.plugin_timeout.min(BRIEF_TIMEOUTS.0), until: Instant::now() + CHECK_PATIENCE };
    let mut checks = NetworkChecks::default();
    for id in ids {
        if checks.checks.len() >= CHECKS_MAX || Instant::now() >= timeouts.until {
            checks.unchecked += 1;
        } else if let Some(checked) = check::check(host, &id, is_disabled, timeouts) {
            checks.checks.push(result(&id, checked));
        }
    }
    MemFile::new("checks", &[&checks.encode_to_vec()])
        .map_err(|error| failed("cannot store the checks of the network", &error))
}

fn is_on(host: &Host, id: &ContainerId, network: &str) -> bool {
    let stored = store::read(host, id.as_str());
    matches!(stored, Ok(Some(Stored::Cni(attachment))) if attachment.network.name == network)
}

fn result(id: &ContainerId, checked: Checked) -> AttachmentCheck {
    let (outcome, message) = match checked {
        Checked::Connected => (CheckOutcome::Connected, String::new()),
        Checked::Broken(why) => (CheckOutcome::Broken, why),
        Checked::Skipped(why) => (CheckOutcome::Skipped, why),
    };
    let message = shortened(message, NETWORK_WARNING_LENGTH);
    AttachmentCheck { id: id.to_string(), outcome: outcome.into(), message }
}
