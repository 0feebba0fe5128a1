//! Reads and changes capabilities of the calling thread (capabilities(7)).
//!
//! Capabilities are per thread, and a new thread inherits the capabilities of its creator. Therefore, the functions
//! that change capabilities are for single-threaded processes.

use std::collections::BTreeMap;
use std::io;

use caps::errors::CapsError;
use caps::{CapSet, securebits};
pub use caps::{Capability, CapsHashSet};

/// Parses capability names (`CAP_KILL`) into a set.
///
/// # Errors
/// Returns an error if a name is not a capability.
pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> io::Result<CapsHashSet> {
    names.into_iter().map(|name| name.parse().map_err(io::Error::other)).collect()
}

/// Returns true if a capability is in the bounding set, so that this process can pass it on.
pub fn is_in_bounding_set(capability: Capability) -> bool {
    caps::has_cap(None, CapSet::Bounding, capability).unwrap_or(false) // fails if unknown to this kernel
}

pub(crate) fn effective() -> io::Result<CapsHashSet> {
    caps::read(None, CapSet::Effective).map_err(failed)
}

pub(crate) fn set_effective(set: &CapsHashSet) -> io::Result<()> {
    caps::set(None, CapSet::Effective, set).map_err(failed)
}

/// Returns true if a capability is in the effective set.
///
/// # Errors
/// Returns the kernel's error if a system call fails, which is not expected.
pub fn is_effective(capability: Capability) -> io::Result<bool> {
    caps::has_cap(None, CapSet::Effective, capability).map_err(failed)
}

/// Action if the caller has no privilege to change the bounding set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bounding {
    /// Leave the set unchanged. The caller must ensure by other means that the set has no effect (no_new_privs).
    IfAllowed,
    /// Return an error.
    Required,
}

/// Removes all capabilities except `kept` from the bounding set, in numerical order. Requires CAP_SETPCAP.
pub(crate) fn limit_bounding_set(kept: &CapsHashSet, how: Bounding) -> io::Result<()> {
    let dropped: BTreeMap<u8, Capability> =
        caps::all().difference(kept).map(|capability| (capability.index(), *capability)).collect();
    for capability in dropped.into_values() {
        let Err(error) = caps::drop(None, CapSet::Bounding, capability) else { continue };
        let is_newer_than_kernel = caps::has_cap(None, CapSet::Bounding, capability).is_err();
        if !is_newer_than_kernel && how == Bounding::Required {
            return Err(failed(error));
        }
    }
    Ok(())
}

/// Sets the permitted and effective capabilities to `capabilities`, and the inheritable and ambient capabilities to
/// `ambient`.
pub(crate) fn retain(capabilities: &CapsHashSet, ambient: &CapsHashSet) -> io::Result<()> {
    // The order matters: ambient capabilities must be inheritable, so they are cleared first; all other sets must be
    // subsets of the permitted set, so that set is changed last.
    caps::clear(None, CapSet::Ambient).map_err(failed)?;
    caps::set(None, CapSet::Inheritable, ambient).map_err(failed)?;
    caps::set(None, CapSet::Effective, capabilities).map_err(failed)?;
    caps::set(None, CapSet::Permitted, capabilities).map_err(failed)?;
    ambient.iter().try_for_each(|capability| caps::raise(None, CapSet::Ambient, *capability).map_err(failed))
}

/// Sets whether permitted capabilities survive a change of user (PR_SET_KEEPCAPS).
pub(crate) fn keep_over_change_of_user(keep: bool) -> io::Result<()> {
    securebits::set_keepcaps(keep).map_err(failed)
}

/// Returns true if all effective and permitted capabilities are in `kept`.
pub(crate) fn is_limited_to(kept: &CapsHashSet) -> io::Result<bool> {
    let permitted = caps::read(None, CapSet::Permitted).map_err(failed)?;
    Ok(permitted.is_subset(kept) && effective()?.is_subset(kept))
}

fn failed(error: CapsError) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_requested_capability_name_is_known() {
        for (number, name) in executor_core::validate::CAPABILITIES.iter().enumerate() {
            let set = named([*name]).unwrap();
            let found: Vec<_> =
                set.iter().map(|capability| (usize::from(capability.index()), capability.to_string())).collect();
            assert_eq!(found, [(number, (*name).to_owned())]);
        }
        assert_eq!(caps::all().len(), executor_core::validate::CAPABILITIES.len());
        assert!(named(["KILL"]).is_err());
    }
}
