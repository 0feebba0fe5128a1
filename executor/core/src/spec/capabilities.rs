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
    /// Permitted, effective and bounding capabilities, in the kernel's spelling.
    pub names: BTreeSet<&'static str>,
    /// True if the capabilities are also inheritable and ambient. Otherwise a user other than root would lose added
    /// capabilities at execve.
    pub ambient: bool,
}

/// Returns the capabilities of a process of this user: the default set, without the dropped capabilities, with the
/// added capabilities. The default set is empty for users other than root, and contains all capabilities if privileged.
pub fn held(isolation: &Isolation, uid: u32) -> CapabilitySets {
    let all = || CAPABILITIES.into_iter();
    let is = |list: &[String], name: &str| list.iter().any(|one| one == "ALL" || one == name);
    let by_default = |name: &str| {
        let default = isolation.privileged || ROOT_CAPABILITIES.contains(&name);
        uid == 0 && default && !is(&isolation.capabilities_dropped, name)
    };
    let names = all().filter(|name| by_default(name) || is(&isolation.capabilities_added, name)).collect();
    CapabilitySets { names, ambient: uid != 0 }
}

/// Converts the capabilities to the sets of the specification.
pub(super) fn sets(capabilities: &CapabilitySets) -> Result<LinuxCapabilities, OciSpecError> {
    let known = |name: &&'static str| name.strip_prefix("CAP_")?.parse().ok();
    let all: Capabilities = capabilities.names.iter().filter_map(known).collect();
    let ambient = if capabilities.ambient { all.clone() } else { Capabilities::new() };
    LinuxCapabilitiesBuilder::default()
        .bounding(all.clone())
        .effective(all.clone())
        .permitted(all)
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
            assert_eq!(count(&[], &[], privileged, 1000), 0, "a user other than root has what is added, nothing else");
        }
        let one = held(&isolation(&["CAP_NET_RAW"], &[], false), 1000);
        assert_eq!(one, CapabilitySets { names: ["CAP_NET_RAW"].into(), ambient: true });
    }

    #[test]
    fn every_name_reaches_the_specification() {
        let sets = sets(&held(&isolation(&["ALL"], &[], false), 1000)).unwrap();
        for set in [sets.bounding(), sets.effective(), sets.permitted(), sets.inheritable(), sets.ambient()] {
            assert_eq!(set.as_ref().unwrap().len(), CAPABILITIES.len());
        }
    }
}
