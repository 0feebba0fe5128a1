//! Computes the capabilities of a container's process, and of processes that are executed in the container later.

use std::collections::BTreeSet;

use oci_spec::OciSpecError;
use oci_spec::runtime::{Capabilities, LinuxCapabilities, LinuxCapabilitiesBuilder};

use crate::plan::Isolation;
use crate::validate::CAPABILITIES;

/// Capabilities of a process that runs as root in its container. A process of another user has none by default.
pub const ROOT_CAPABILITIES: [&str; 8] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETGID",
    "CAP_SETUID",
];

/// Capabilities of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapabilitySets {
    /// Permitted and effective capabilities, in the kernel's spelling.
    pub names: BTreeSet<&'static str>,
    /// Bounding set: the capabilities that set-user-id programs can gain. This set differs from `names` only if
    /// programs may gain privileges.
    pub bounding: BTreeSet<&'static str>,
    /// True if the capabilities are also inheritable and ambient. Otherwise a user other than root would lose added
    /// capabilities at execve.
    pub ambient: bool,
    /// True if programs may gain privileges. The process then has CAP_SYS_ADMIN until its filter is installed: without
    /// no_new_privs, the kernel requires this capability.
    pub new_privileges: bool,
}

/// Capability to install a seccomp filter without no_new_privs.
pub const INSTALLS_FILTERS: &str = "CAP_SYS_ADMIN";

impl CapabilitySets {
    /// Returns sets with these capabilities, none ambient, for a process that can gain no other capabilities.
    pub fn new(names: BTreeSet<&'static str>) -> Self {
        Self { bounding: names.clone(), names, ambient: false, new_privileges: false }
    }

    /// Returns the capabilities of the process before its filter is installed.
    pub fn before_filter(&self) -> BTreeSet<&'static str> {
        let added = self.new_privileges.then_some(INSTALLS_FILTERS);
        self.names.iter().copied().chain(added).collect()
    }
}

/// Returns the capabilities of a process of this user: the default set without the dropped capabilities, plus the added
/// capabilities. The default set is empty for users other than root, and contains all capabilities for root of a
/// privileged container.
pub fn held(isolation: &Isolation, uid: u32) -> CapabilitySets {
    let is = |list: &[String], name: &str| list.iter().any(|one| one == "ALL" || one == name);
    let of_user = |uid: u32| -> BTreeSet<&'static str> {
        let by_default = |name: &str| {
            let default = isolation.privileged || ROOT_CAPABILITIES.contains(&name);
            uid == 0 && default && !is(&isolation.capabilities_dropped, name)
        };
        let held = |name: &&str| by_default(name) || is(&isolation.capabilities_added, name);
        CAPABILITIES.into_iter().filter(held).collect()
    };
    let new_privileges = isolation.allow_new_privileges;
    let (names, ambient) = (of_user(uid), uid != 0);
    // A set-user-id program that is owned by root gets root's capabilities.
    let bounding = if new_privileges { of_user(0) } else { names.clone() };
    CapabilitySets { names, bounding, ambient, new_privileges }
}

/// Converts the capabilities to the sets of the specification.
pub(super) fn sets(capabilities: &CapabilitySets) -> Result<LinuxCapabilities, OciSpecError> {
    let known = |name: &&'static str| name.strip_prefix("CAP_")?.parse().ok();
    let set = |names: &BTreeSet<&'static str>| -> Capabilities { names.iter().filter_map(known).collect() };
    let first = set(&capabilities.before_filter());
    let ambient = if capabilities.ambient { set(&capabilities.names) } else { Capabilities::new() };
    LinuxCapabilitiesBuilder::default()
        .bounding(set(&capabilities.bounding))
        .effective(first.clone())
        .permitted(first)
        .inheritable(ambient.clone())
        .ambient(ambient)
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn isolation(add: &[&str], drop: &[&str], privileged: bool) -> Isolation {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Isolation {
            capabilities_added: list(add),
            capabilities_dropped: list(drop),
            privileged,
            ..Isolation::default()
        }
    }

    #[test]
    fn dropped_first_then_added() {
        let count =
            |add: &[&str], drop: &[&str], privileged, uid| held(&isolation(add, drop, privileged), uid).names.len();
        assert_eq!(count(&[], &[], false, 0), 8);
        assert_eq!(count(&[], &[], true, 0), 41);
        assert_eq!(count(&[], &["ALL"], false, 0), 0);
        assert_eq!(count(&["CAP_KILL"], &["ALL"], false, 0), 1);
        assert_eq!(count(&["CAP_KILL"], &["CAP_KILL", "CAP_CHOWN"], false, 0), 7);
        assert_eq!(count(&["ALL"], &["CAP_KILL"], false, 0), 41);
        for privileged in [false, true] {
            assert_eq!(count(&[], &[], privileged, 1000), 0, "a user other than root has only the added capabilities");
        }
        let one = held(&isolation(&["CAP_NET_RAW"], &[], false), 1000);
        assert_eq!(one, CapabilitySets { ambient: true, ..CapabilitySets::new(["CAP_NET_RAW"].into()) });
    }

    #[test]
    fn new_privileges_leave_roots_bounding_set() {
        let open = |uid| {
            let isolation = isolation(&["CAP_NET_RAW"], &["CAP_KILL"], false);
            held(&Isolation { allow_new_privileges: true, ..isolation }, uid)
        };
        let (user, root) = (open(1000), open(0));
        assert_eq!((user.names.len(), user.bounding.len(), root.names.len()), (1, 8, 8));
        assert!(user.bounding == root.bounding && !root.bounding.contains("CAP_KILL"));
        let sets = sets(&user).unwrap();
        for (set, count) in [(sets.permitted(), 2), (sets.effective(), 2), (sets.ambient(), 1), (sets.bounding(), 8)] {
            assert_eq!(set.as_ref().unwrap().len(), count);
        }
        assert!(user.before_filter().contains(INSTALLS_FILTERS) && !user.bounding.contains(INSTALLS_FILTERS));
    }

    #[test]
    fn every_name_reaches_the_specification() {
        let sets = sets(&held(&isolation(&["ALL"], &[], false), 1000)).unwrap();
        for set in [sets.bounding(), sets.effective(), sets.permitted(), sets.inheritable(), sets.ambient()] {
            assert_eq!(set.as_ref().unwrap().len(), CAPABILITIES.len());
        }
    }
}
