//! Built-in networks, which the launcher makes: only their settings are checked here.

use super::{Check, Faults, File};

/// Checks the networks, and that the warm pool uses one of them, and records every fault.
pub(super) fn check(check: &Check, file: &File, faults: &mut Faults) {
    match file.networks.check() {
        Ok(networks) => {
            faults.record(check.usable(file.warm_pool.check_network(networks.keys())));
        }
        Err(unusable) => {
            for one in unusable {
                faults.record(check.usable(Err(one)));
            }
        }
    }
}
