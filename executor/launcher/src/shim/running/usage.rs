//! Counters of a running container: of its cgroup, and of its own network.

use std::fs::File;
use std::os::unix::fs::FileExt;

use executor_core::plan::{Network, Plan};
use executor_core::usage::{NetworkUsage, Usage};

use crate::finish::now;
use crate::host::Host;

/// Maximum bytes of a table of interfaces that are read. Only a privileged container can have more than a few.
const TABLE_MAX: usize = 256 << 10;

/// The counters of a container's interfaces. The open table stays readable when the container's processes have ended.
#[derive(Debug, Default)]
pub(crate) struct Interfaces(Option<File>);

impl Interfaces {
    /// Opens those of a container on a network of CNI, whose first process this is.
    pub(crate) fn new(plan: &Plan, init: i32) -> Self {
        let on_network = plan.network == Network::Cni;
        Self(on_network.then(|| File::open(format!("/proc/{init}/net/dev")).ok()).flatten())
    }

    /// Reads them.
    pub(crate) fn usage(&self) -> Option<NetworkUsage> {
        let file = self.0.as_ref()?;
        let mut table = vec![0; 4096];
        let mut length = 0;
        // The kernel gives whole lines, as many as fit.
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

/// Reads the counters of a container; `None` where its cgroup is gone.
pub(crate) fn read(host: &Host, cgroup: &std::path::Path, interfaces: &Interfaces) -> Option<Usage> {
    let usage = host.hierarchies.usage(cgroup)?;
    Some(Usage { at: now().0, network: interfaces.usage(), ..usage })
}
