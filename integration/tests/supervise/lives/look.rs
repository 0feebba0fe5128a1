//! Reads the figures of a daemon that must not grow, from the host.

use std::fs;
use std::time::Duration;

use integration::daemon::Daemon;
use integration::network::Network;
use integration::{footprint, host};

use crate::lives::evaluate::{Figures, Memory};

/// Polling interval of counts that may still change.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Counts of processes, cgroups, mounts of the launcher, mounts of the host, files, network interfaces of the host, and
/// lines of the host's nf_tables rules.
pub(crate) fn counts(daemon: &Daemon, network: &Network) -> [u64; 7] {
    let (setup, launcher) = (daemon.setup(), daemon.launcher());
    let host_mounts = footprint::mounts(setup.home(), None);
    let counts = [
        footprint::processes(&setup.run_dir(), launcher).len(),
        footprint::cgroups(&setup.run_dir()).len(),
        footprint::mounts(setup.home(), launcher).difference(&host_mounts).count(),
        host_mounts.len(),
        footprint::files(&setup.run_dir(), &setup.state_dir()).len(),
        network.on_host(&["ip", "-o", "link"]).lines().count(),
        // The elements of a set are on one line.
        network.on_host(&["nft", "list", "ruleset"]).matches(['\n', ',']).count(),
    ];
    counts.map(|count| count as u64)
}

/// Measures all resource figures of the daemon and its host.
pub(crate) fn figures(daemon: &Daemon, network: &Network) -> Figures {
    let [processes, cgroups, launcher_mounts, host_mounts, files, interfaces, rules] = counts(daemon, network);
    let (executord, launcher) = (daemon.pid(), daemon.launcher().expect("the daemon has a launcher"));
    let ledger = fs::read_dir(daemon.setup().state_dir().join("ledger")).into_iter().flatten().flatten();
    let ledger: u64 = ledger.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
    Figures {
        executord: memory(executord),
        launcher: memory(launcher),
        executord_descriptors: host::descriptors(executord) as u64,
        launcher_descriptors: host::descriptors(launcher) as u64,
        launcher_mounts,
        host_mounts,
        cgroups,
        files,
        ledger_kib: ledger / 1024,
        processes,
        interfaces,
        rules,
    }
}

fn memory(pid: i32) -> Memory {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the process runs");
    let line = |name: &str| {
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().strip_suffix(" kB"));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("the metrics have no {name}: {text}"))
    };
    Memory {
        pss_kib: line("Pss"),
        rss_kib: line("Rss"),
        anonymous_pss_kib: line("Pss_Anon"),
        anonymous_rss_kib: line("Anonymous"),
    }
}
