//! Determines the capabilities of a container's processes: the requested capabilities that the launcher has.

use executor_core::plan::{Isolation, UserNamespace};
use executor_core::protocol::{Reason, Refused};
use executor_core::spec::{self, CapabilitySets};
use executor_core::validate::Violation;
use executor_sys::capabilities::is_in_bounding_set;

/// Returns the capabilities of a process that runs as `uid`. In its own user namespace, a container gets all requested
/// capabilities. With the host's ids, a container gets only capabilities that the launcher has, because the launcher's
/// systemd unit may withhold some. Capabilities that the request adds by name are kept here, and [`can_be_given`]
/// checks them.
pub(crate) fn held(isolation: &Isolation, uid: u32) -> CapabilitySets {
    let mut sets = spec::held(isolation, uid);
    if isolation.user_namespace == UserNamespace::Host {
        let is_kept = |name: &&str| isolation.capabilities_added.iter().any(|added| added == name) || can_give(name);
        sets.names.retain(is_kept);
        sets.bounding.retain(is_kept);
    }
    sets
}

fn can_give(name: &str) -> bool {
    name.parse().is_ok_and(is_in_bounding_set)
}

/// Checks that the launcher has the capabilities that the request adds by name.
pub(crate) fn can_be_given(isolation: &Isolation, capabilities: &CapabilitySets) -> Result<(), Refused> {
    if isolation.user_namespace == UserNamespace::Own {
        return Ok(());
    }
    let lacking: Vec<&str> = capabilities.names.iter().copied().filter(|name| !can_give(name)).collect();
    if lacking.is_empty() {
        return Ok(());
    }
    let why = format!("the launcher does not have {}", lacking.join(", "));
    Err(Refused::from_fields(Reason::Precondition, &[Violation::new("capabilities.add", why)]))
}
