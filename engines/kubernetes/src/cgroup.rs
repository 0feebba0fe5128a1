//! Counters that executord does not report, read from a container's cgroup and its processes.

use std::fs;
use std::path::{Path, PathBuf};

use executor_client::v1;

use crate::store::Container;

/// Mount of the hierarchies.
pub(crate) const ROOT: &str = "/sys/fs/cgroup";
/// Processes whose descriptors are counted.
const PROCESSES_MAX: usize = 1000;

/// Counters of a container. What cannot be read is 0: the container may have ended meanwhile.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CgroupCounters {
    pub(crate) processes: u64,
    /// Open files of all processes.
    pub(crate) descriptors: u64,
    /// Open files that are sockets.
    pub(crate) sockets: u64,
    /// Bytes of mapped files.
    pub(crate) mapped_bytes: u64,
    /// Times that the memory limit was reached.
    pub(crate) limit_reached: u64,
}

impl CgroupCounters {
    /// Reads the counters of a running container.
    pub(crate) fn of_container(container: &Container) -> Self {
        let pids = container.state.iter().flat_map(|run: &std::sync::Arc<v1::Container>| &run.processes);
        let pid = pids.map(|process| process.pid).find(|&pid| pid > 0);
        let text = pid.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()).unwrap_or_default();
        memory_cgroup(&text).map(|cgroup| Self::read(&cgroup)).unwrap_or_default()
    }

    fn read(cgroup: &Path) -> Self {
        let text = |name: &str| fs::read_to_string(cgroup.join(name)).unwrap_or_default();
        let members = text("cgroup.procs");
        let pids: Vec<&str> = members.lines().collect();
        let mut counters = Self { processes: pids.len() as u64, ..Self::default() };
        for pid in pids.into_iter().take(PROCESSES_MAX) {
            for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
                counters.descriptors += 1;
                let target = fs::read_link(entry.path()).unwrap_or_default();
                counters.sockets += u64::from(target.to_string_lossy().starts_with("socket:"));
            }
        }
        let statistics = text("memory.stat");
        counters.mapped_bytes =
            field(&statistics, "total_mapped_file").or_else(|| field(&statistics, "file_mapped")).unwrap_or(0);
        let failures = text("memory.failcnt");
        counters.limit_reached =
            failures.trim().parse().ok().or_else(|| field(&text("memory.events"), "max")).unwrap_or(0);
        counters
    }
}

/// Returns the value of a line `NAME VALUE`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Returns the directory of the memory controller, or of cgroup v2, from /proc/PID/cgroup.
fn memory_cgroup(text: &str) -> Option<PathBuf> {
    let of_v1 = text.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|name| name == "memory").then(|| format!("{ROOT}/memory{path}"))
    });
    let of_v2 = || text.lines().find_map(|line| line.strip_prefix("0::")).map(|path| format!("{ROOT}{path}"));
    of_v1.or_else(of_v2).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_of_both_versions_are_found() {
        let hybrid = "9:memory:/executor/a\n3:cpu,cpuacct:/executor/a\n0::/\n";
        assert_eq!(memory_cgroup(hybrid).unwrap(), Path::new("/sys/fs/cgroup/memory/executor/a"));
        assert_eq!(memory_cgroup("0::/executor/a\n").unwrap(), Path::new("/sys/fs/cgroup/executor/a"));
        assert_eq!(memory_cgroup(""), None);
    }

    #[test]
    fn counters_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        write("cgroup.procs", &format!("{}\n", std::process::id()));
        write("memory.stat", "file_mapped 4096\n");
        write("memory.events", "low 0\nmax 7\n");
        let (_one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let counters = CgroupCounters::read(directory.path());
        assert_eq!((counters.processes, counters.mapped_bytes, counters.limit_reached), (1, 4096, 7));
        assert!(counters.sockets >= 2 && counters.descriptors > counters.sockets, "{counters:?}");
    }
}
