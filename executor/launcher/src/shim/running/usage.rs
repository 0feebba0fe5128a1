//! Reads the counters of a running container's cgroup and network.

use std::fs::File;
use std::os::unix::fs::FileExt;

use executor_core::plan::{Network, Plan};
use executor_core::usage::{NetworkUsage, Usage};

use crate::finish::now;
use crate::host::Host;

/// Maximum number of bytes that are read from the table of interfaces. Only a privileged container can have more than a
/// few interfaces.
const TABLE_MAX: usize = 256 << 10;

/// Counters of a container's network interfaces. The open table stays readable after the container's processes have
/// exited.
#[derive(Debug, Default)]
pub(crate) struct Interfaces(Option<File>);

impl Interfaces {
    /// Opens the counters of a container on a CNI network. `init` is the pid of the container's init.
    pub(crate) fn new(plan: &Plan, init: i32) -> Self {
        let on_network = plan.network == Network::Cni;
        Self(on_network.then(|| File::open(format!("/proc/{init}/net/dev")).ok()).flatten())
    }

    /// Returns the sum of the counters of all interfaces except loopback.
    pub(crate) fn usage(&self) -> Option<NetworkUsage> {
        let file = self.0.as_ref()?;
        let mut table = vec![0; 4096];
        let mut length = 0;
        // The kernel returns as many whole lines as fit.
        loop {
            match file.read_at(&mut table[length..], length as u64) {
                Ok(0) => break,
                Ok(read) => length += read,
                Err(_) => return None,
            }
            if table.len() - length < 1024 {
                if table.len() >= TABLE_MAX {
                    break;
                }
                table.resize(table.len() * 2, 0);
            }
        }
        Some(NetworkUsage::from_devices(&String::from_utf8_lossy(&table[..length])))
    }
}

/// Reads the counters of a container. Returns `None` if the cgroup does not exist.
pub(crate) fn read(host: &Host, cgroup: &std::path::Path, interfaces: &Interfaces) -> Option<Usage> {
    let usage = host.hierarchies.usage(cgroup)?;
    Some(Usage { at: now().0, network: interfaces.usage(), ..usage })
}
