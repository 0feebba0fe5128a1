//! Writes the device rules of a version 1 cgroup.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

use executor_core::spec::DeviceNode;

use crate::errors::at;

/// Rule for every access to every device.
const ALL: &str = "a";
/// Devices that every container may use: the nodes that libcontainer creates below /dev, and terminals. The rules with
/// `m` permit creating a node for any device. The kernel limits the creation of nodes to privileged processes.
const DEFAULT_RULES: [&str; 12] = [
    "c *:* m",
    "b *:* m",
    "c 1:3 rwm",
    "c 1:5 rwm",
    "c 1:7 rwm",
    "c 1:8 rwm",
    "c 1:9 rwm",
    "c 5:0 rwm",
    "c 5:1 rwm",
    "c 5:2 rwm",
    "c 10:200 rwm",
    "c 136:* rwm",
];

#[derive(Clone, Copy, Debug)]
pub(crate) enum Devices<'a> {
    /// The container may use all devices of the host.
    All,
    /// The container may use the default devices and the listed devices.
    These(&'a [DeviceNode]),
}

impl Devices<'_> {
    /// Permits the devices in a new cgroup. A new cgroup inherits its parent's rules.
    pub(super) fn open(&self, dir: &Path) -> io::Result<()> {
        match self {
            Self::All => write(dir, "devices.allow", &[ALL]),
            Self::These(nodes) => {
                write(dir, "devices.deny", &[ALL])?;
                write(dir, "devices.allow", &DEFAULT_RULES)?;
                let rules: Vec<String> = nodes.iter().map(rule).collect();
                write(dir, "devices.allow", &rules)
            }
        }
    }
}

/// Returns the rule that permits a device, in the kernel's syntax.
fn rule(node: &DeviceNode) -> String {
    let kind = if node.block { 'b' } else { 'c' };
    format!("{kind} {}:{} {}", node.major, node.minor, node.permissions)
}

/// Writes each rule with its own write call.
fn write(dir: &Path, file: &str, rules: &[impl AsRef<str>]) -> io::Result<()> {
    if rules.is_empty() {
        return Ok(());
    }
    let path = dir.join(file);
    let about = |error: io::Error| at(&path, &error);
    let mut file = OpenOptions::new().write(true).open(&path).map_err(about)?;
    rules.iter().try_for_each(|rule| file.write_all(rule.as_ref().as_bytes())).map_err(about)
}

#[cfg(test)]
mod tests {
    use executor_core::plan::DevicePermissions;

    use super::*;

    #[test]
    fn a_rule_has_numbers_and_permissions() {
        let node = |block, permissions: &str| DeviceNode {
            is_in_place: false,
            path: "/dev/x".into(),
            block,
            major: 8,
            minor: 1,
            permissions: permissions.parse::<DevicePermissions>().unwrap(),
            access: None,
        };
        assert_eq!(rule(&node(false, "rw")), "c 8:1 rw");
        assert_eq!(rule(&node(true, "rm")), "b 8:1 rm");
    }
}
