//! Reads counters that executord does not report from a container's cgroup and processes.

use std::fs;
use std::path::{Path, PathBuf};

use executor_client::v1;

use crate::store::Container;

/// Mount point of the cgroup hierarchies.
pub(crate) const ROOT: &str = "/sys/fs/cgroup";
/// Maximum memory limit, in bytes. The kernel shows a larger number if there is no limit.
const LIMIT_MAX: u64 = 1 << 62;
/// Maximum number of processes whose descriptors are counted.
const PROCESSES_MAX: usize = 1000;

/// Counters of a container. A counter that cannot be read is 0: the container may have exited.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CgroupCounters {
    pub(crate) processes: u64,
    /// Number of open files of all processes.
    pub(crate) descriptors: u64,
    /// Number of open files that are sockets.
    pub(crate) sockets: u64,
    pub(crate) mapped_bytes: u64,
    /// Number of times that the memory limit was reached.
    pub(crate) limit_reached: u64,
    /// Bytes of memory that are reserved for the container; 0 without a reservation.
    pub(crate) reserved_bytes: u64,
    /// Soft limit on open files of the container's first process; unset without a limit.
    pub(crate) files_limit: Option<u64>,
    pub(crate) huge_pages: Vec<HugePages>,
}

/// A container's use of huge pages of one size.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HugePages {
    /// Size of a page, such as `2MB`.
    pub(crate) size: String,
    pub(crate) used_bytes: u64,
    /// Peak usage, in bytes; unset with cgroup v2, which does not record the peak.
    pub(crate) max_bytes: Option<u64>,
}

impl CgroupCounters {
    /// Reads the counters of a running container.
    pub(crate) fn of_container(container: &Container) -> Self {
        let pids = container.state.iter().flat_map(|run: &std::sync::Arc<v1::Container>| &run.processes);
        let pid = pids.map(|process| process.pid).find(|&pid| pid > 0);
        let Some(pid) = pid else { return Self::default() };
        let text = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let cgroups = text("cgroup");
        let counters = cgroup(&cgroups, "memory").map(|cgroup| Self::read(&cgroup)).unwrap_or_default();
        let huge_pages = cgroup(&cgroups, "hugetlb").map(|cgroup| huge_pages(&cgroup)).unwrap_or_default();
        Self { files_limit: files_limit(&text("limits")), huge_pages, ..counters }
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
        let reserved = [text("memory.soft_limit_in_bytes"), text("memory.min")].concat();
        counters.reserved_bytes = reserved.trim().parse().ok().filter(|&bytes| bytes <= LIMIT_MAX).unwrap_or_default();
        counters
    }
}

/// Returns the use of huge pages of every size.
fn huge_pages(cgroup: &Path) -> Vec<HugePages> {
    let number = |name: String| fs::read_to_string(cgroup.join(name)).ok()?.trim().parse().ok();
    let entries = fs::read_dir(cgroup).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut found: Vec<HugePages> = names
        .filter_map(|name| {
            let (size, file) = name.strip_prefix("hugetlb.")?.split_once('.')?;
            let used_bytes = number(name.clone()).filter(|_| matches!(file, "usage_in_bytes" | "current"))?;
            let max_bytes = number(format!("hugetlb.{size}.max_usage_in_bytes"));
            Some(HugePages { size: size.to_owned(), used_bytes, max_bytes })
        })
        .collect();
    found.sort_by(|one, other| one.size.cmp(&other.size));
    found
}

/// Returns the soft limit on open files from /proc/PID/limits.
fn files_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the value of the line `NAME VALUE` with this name.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Returns the cgroup directory of a controller, or else of cgroup v2, from /proc/PID/cgroup.
fn cgroup(text: &str, controller: &str) -> Option<PathBuf> {
    let of_v1 = text.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then(|| format!("{ROOT}/{controller}{path}"))
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
        assert_eq!(cgroup(hybrid, "memory").unwrap(), Path::new("/sys/fs/cgroup/memory/executor/a"));
        assert_eq!(cgroup("0::/executor/a\n", "hugetlb").unwrap(), Path::new("/sys/fs/cgroup/executor/a"));
        assert_eq!(cgroup("", "memory"), None);
    }

    #[test]
    fn counters_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        write("cgroup.procs", &format!("{}\n", std::process::id()));
        write("memory.stat", "file_mapped 4096\n");
        write("memory.events", "low 0\nmax 7\n");
        write("memory.min", "8192\n");
        let (_one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let counters = CgroupCounters::read(directory.path());
        assert_eq!((counters.processes, counters.mapped_bytes, counters.limit_reached), (1, 4096, 7));
        assert!(counters.sockets >= 2 && counters.descriptors > counters.sockets, "{counters:?}");
        assert_eq!(counters.reserved_bytes, 8192);
        fs::remove_file(directory.path().join("memory.min")).unwrap();
        write("memory.soft_limit_in_bytes", "9223372036854771712\n");
        assert_eq!(CgroupCounters::read(directory.path()).reserved_bytes, 0, "there is no limit");
    }

    /// Rule C41: huge pages of every size are reported.
    #[test]
    fn huge_pages_of_all_sizes_are_read() {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("hugetlb.2MB.usage_in_bytes", "4194304\n"),
            ("hugetlb.2MB.max_usage_in_bytes", "6291456\n"),
            ("hugetlb.2MB.rsvd.usage_in_bytes", "1\n"),
            ("hugetlb.1GB.current", "0\n"),
            ("hugetlb.1GB.max", "max\n"),
        ] {
            fs::write(directory.path().join(name), text).unwrap();
        }
        let expected = [("1GB", 0, None), ("2MB", 4_194_304, Some(6_291_456))]
            .map(|(size, used_bytes, max_bytes)| HugePages { size: size.to_owned(), used_bytes, max_bytes });
        assert_eq!(huge_pages(directory.path()), expected);
    }

    #[test]
    fn soft_limits_on_files_are_read() {
        let header = "Limit                     Soft Limit           Hard Limit           Units\n";
        let text = |soft: &str| {
            format!("{header}Max open files            {soft}                 4096                 files\n")
        };
        assert_eq!(files_limit(&text("1024")), Some(1024));
        assert_eq!((files_limit(&text("unlimited")), files_limit("")), (None, None));
        assert!(files_limit(&fs::read_to_string("/proc/self/limits").unwrap()).is_some());
    }
}
