//! Reads the built-in networks, which the launcher creates.

use std::collections::BTreeMap;

use executor_core::bridge::BridgeNetwork;

use super::{Check, Faults, File};

/// Built-in networks by name.
pub(super) type BridgeNetworks = BTreeMap<String, BridgeNetwork>;

/// Returns the networks, and checks the warm pool's network against them. Records every error.
pub(super) fn resolve(check: &Check, file: &File, faults: &mut Faults) -> BridgeNetworks {
    match file.networks.check() {
        Ok(networks) => {
            faults.record(check.usable(file.warm_pool.check_network(networks.keys())));
            networks
        }
        Err(unusable) => {
            for one in unusable {
                faults.record(check.usable(Err(one)));
            }
            BridgeNetworks::new()
        }
    }
}
