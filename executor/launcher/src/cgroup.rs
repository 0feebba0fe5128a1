//! Creates, limits, joins, reads, kills and removes the cgroups of containers.
//!
//! A cgroup is identified by its relative path. On a version 1 host a container has one directory with this path in
//! each hierarchy.

mod devices;
mod execs;
mod hierarchy;
mod limits;
mod parents;
mod pause;
#[cfg(test)]
mod tests;
mod usage;
mod view;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use executor_core::plan::SidecarLimits;
use executor_sys::kernel_file;
use executor_sys::mountinfo::{self, Mount};

pub(crate) use devices::Devices;
pub(crate) use execs::ExecCgroup;
use hierarchy::Hierarchy;
pub(crate) use limits::page_pool;
pub(crate) use pause::StoppedProcesses;

use crate::errors::at;

/// Directory where the cgroup hierarchies are mounted.
pub(crate) const ROOT: &str = "/sys/fs/cgroup";
/// Version 1 controllers that containers use. Other hierarchies are detached from the launcher's mount namespace.
const USED: [&str; 6] = ["cpu", "cpuacct", "devices", "hugetlb", "memory", "pids"];

/// Name of the child cgroup, on version 2, for container processes without a child cgroup of their own. Version 2
/// permits children with limits only in a cgroup that contains no processes itself.
const REST: &str = "rest";

/// Returns the path of the cgroup of a sidecar with its own limits, below the container's cgroup.
pub(crate) fn part_of(container: &Path, sidecar: usize) -> PathBuf {
    container.join(format!("sidecar-{sidecar}"))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hierarchies {
    /// Version 1: one hierarchy per set of controllers.
    V1 {
        /// True if version 2 is mounted as well, without controllers.
        hybrid: bool,
        /// Hierarchies in use.
        all: Vec<Hierarchy>,
        /// Mount point of the memory hierarchy.
        memory: PathBuf,
        /// Mount point of the cpuset hierarchy, if the host has one. Only containers that request CPUs or memory nodes
        /// join a cgroup in this hierarchy.
        cpuset: Option<PathBuf>,
    },
    /// Version 2: a single tree.
    V2 { mount: PathBuf },
}

#[derive(Debug, PartialEq, Eq)]
enum MountedHierarchies {
    V1 { hybrid: bool, used: Vec<Mount>, unused: Vec<Mount> },
    V2 { mount: PathBuf },
}

impl Hierarchies {
    /// Finds the mounted hierarchies. Remounts version 1 hierarchies in the caller's mount namespace.
    ///
    /// # Errors
    /// Returns an error if there is no memory controller or a mount fails.
    pub(crate) fn find() -> io::Result<Self> {
        let missing = || io::Error::other(format!("no memory cgroup hierarchy is mounted below {ROOT}"));
        match Self::among(&mountinfo::parse(&fs::read("/proc/self/mountinfo")?)) {
            Some(MountedHierarchies::V2 { mount }) => Ok(Self::V2 { mount }),
            Some(MountedHierarchies::V1 { hybrid, used, unused }) => {
                let (all, cpuset) = Hierarchy::remount(&used, &unused, &fs::read_to_string("/proc/self/cgroup")?)?;
                let memory = all.iter().find(|one| one.controllers.iter().any(|name| name == "memory"));
                let memory = memory.ok_or_else(missing)?.mount.clone();
                Ok(Self::V1 { hybrid, all, memory, cpuset })
            }
            None => Err(missing()),
        }
    }

    /// Returns the hierarchies among these mounts. Returns `None` if containers cannot run with these mounts.
    fn among(mounts: &[Mount]) -> Option<MountedHierarchies> {
        if let Some(mount) = mounts.iter().find(|mount| mount.kind == "cgroup2" && mount.point == Path::new(ROOT)) {
            return Some(MountedHierarchies::V2 { mount: mount.point.clone() });
        }
        let is_of = |mount: &&Mount| mount.point.starts_with(ROOT) && matches!(&*mount.kind, "cgroup" | "cgroup2");
        let hybrid = mounts.iter().filter(is_of).any(|mount| mount.kind == "cgroup2");
        let is_used =
            |mount: &Mount| mount.kind == "cgroup" && USED.iter().any(|controller| mount.has_option(controller));
        let (used, unused): (Vec<Mount>, Vec<Mount>) = mounts.iter().filter(is_of).cloned().partition(is_used);
        used.iter().any(|mount| mount.has_option("memory")).then_some(MountedHierarchies::V1 { hybrid, used, unused })
    }

    /// Returns version 1 hierarchies in directories named after their controllers. The first hierarchy accounts memory.
    #[cfg(test)]
    fn at(mounts: &[PathBuf]) -> Self {
        let all = mounts.iter().cloned().map(Hierarchy::from_mount).collect();
        Self::V1 { hybrid: false, all, memory: mounts[0].clone(), cpuset: None }
    }

    /// Returns `v1`, `hybrid` or `v2`.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::V1 { hybrid: false, .. } => "v1",
            Self::V1 { hybrid: true, .. } => "hybrid",
            Self::V2 { .. } => "v2",
        }
    }

    /// Returns the directories of a cgroup, one in each hierarchy.
    fn dirs<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = PathBuf> + 'a {
        let (version1, version2) = match self {
            Self::V1 { all, .. } => (all.as_slice(), None),
            Self::V2 { mount } => (&[][..], Some(mount)),
        };
        version1.iter().map(|one| &one.mount).chain(version2).map(move |mount| mount.join(path))
    }

    /// Creates a container's cgroup. On version 1, also writes the device rules. On version 2, which has no device
    /// rules, instead enables the controllers in the parent cgroups.
    ///
    /// # Errors
    /// Returns an error with the path if the cgroup exists or the kernel rejects a device rule.
    pub(crate) fn make(&self, path: &Path, devices: &Devices<'_>) -> io::Result<()> {
        match self {
            Self::V1 { all, .. } => all.iter().try_for_each(|one| one.make(path, devices)),
            Self::V2 { mount } => {
                parents::enable_controllers(mount, path.parent().unwrap_or(Path::new("")));
                let dir = mount.join(path);
                fs::create_dir(&dir).map_err(|error| at(&dir, &error))
            }
        }
    }

    /// Runs `act` while the calling, single-threaded process is in a container's cgroup: processes that `act` creates
    /// start in that cgroup. On version 2, runs `act` without joining the cgroup.
    ///
    /// # Errors
    /// Returns an error if the cgroup cannot be joined or left.
    pub(crate) fn within<T>(&self, path: &Path, act: impl FnOnce() -> T) -> io::Result<T> {
        let Self::V1 { all, .. } = self else { return Ok(act()) };
        let joined = all.iter().try_for_each(|one| hierarchy::enter(&one.mount.join(path)));
        let done = joined.map(|()| act());
        all.iter().try_for_each(Hierarchy::leave)?;
        done
    }

    /// Returns the directory of a cgroup in the hierarchy of a controller.
    fn controller_dir(&self, controller: &str, path: &Path) -> io::Result<PathBuf> {
        let mount = match self {
            Self::V1 { all, .. } => {
                let missing = || io::Error::other(format!("no {controller} cgroup hierarchy is mounted"));
                let found = all.iter().find(|one| one.controllers.iter().any(|name| name == controller));
                &found.ok_or_else(missing)?.mount
            }
            Self::V2 { mount } => mount,
        };
        Ok(mount.join(path))
    }

    fn memory_dir(&self, path: &Path) -> PathBuf {
        match self {
            Self::V1 { memory, .. } => memory.join(path),
            Self::V2 { mount } => mount.join(path),
        }
    }

    /// Returns true if the kernel of a version 1 host accounts swap, so that a swap limit can be set.
    pub(crate) fn swap_limit(&self) -> bool {
        match self {
            Self::V1 { memory, .. } => memory.join("memory.memsw.limit_in_bytes").exists(),
            Self::V2 { .. } => false, // [`Self::limit_swap`] sets `memory.swap.max`
        }
    }

    /// Returns true if a limit on the buffers of TCP and UDP sockets can be set. Version 1 accounts these buffers only
    /// if they have a limit. Version 2 accounts them like other memory.
    pub(crate) fn socket_limit(&self) -> bool {
        match self {
            Self::V1 { memory, .. } => memory.join("memory.kmem.tcp.limit_in_bytes").exists(),
            Self::V2 { .. } => false,
        }
    }

    /// Returns true if swapping cannot bypass a memory limit: the kernel accounts swap, or the host has no swap.
    pub(crate) fn holds_swap(&self) -> bool {
        let has_none = || has_no_swap(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
        matches!(self, Self::V2 { .. }) || self.swap_limit() || has_none()
    }

    /// Returns the names of the controllers that containers can use.
    pub(crate) fn controllers(&self) -> BTreeSet<String> {
        match self {
            Self::V1 { all, .. } => all.iter().flat_map(|one| one.controllers.iter().cloned()).collect(),
            Self::V2 { mount } => {
                let text = fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
                text.split_whitespace().map(str::to_owned).collect()
            }
        }
    }

    /// Moves the calling process into a container's memory cgroup: pages that the process touches from now on are
    /// charged to the container.
    pub(crate) fn join_memory(&self, path: &Path) -> io::Result<()> {
        self.enter(&self.memory_dir(path))
    }

    /// Returns true on version 1, where a single thread can be moved between cgroups. Such a move does not wait for an
    /// RCU grace period of the kernel.
    pub(crate) fn moves_at_once(&self) -> bool {
        matches!(self, Self::V1 { .. })
    }

    /// Runs `act`, and charges memory that the calling, single-threaded process touches during `act` to a container's
    /// cgroup.
    ///
    /// # Errors
    /// Returns an error on version 2, and if the cgroup cannot be joined or left.
    pub(crate) fn within_memory<T>(&self, path: &Path, act: impl FnOnce() -> T) -> io::Result<T> {
        let Self::V1 { all, memory, .. } = self else { return Err(io::ErrorKind::Unsupported.into()) };
        let own = all.iter().find(|one| one.mount == *memory).ok_or(io::ErrorKind::NotFound)?;
        hierarchy::enter(&memory.join(path))?;
        let done = act();
        own.leave()?;
        Ok(done)
    }

    /// Creates a child of a container's cgroup for each sidecar with its own limits.
    ///
    /// # Errors
    /// Returns an error if a controller is missing or the kernel rejects a limit.
    pub(crate) fn make_parts(&self, path: &Path, sidecars: &BTreeMap<usize, SidecarLimits>) -> io::Result<()> {
        if sidecars.is_empty() {
            return Ok(());
        }
        if let Self::V2 { mount } = self {
            let container = mount.join(path);
            fs::create_dir(container.join(REST))?;
            for pid in self.pids(path) {
                fs::write(container.join(REST).join("cgroup.procs"), pid.to_string())?;
            }
            fs::write(container.join("cgroup.subtree_control"), "+memory +pids")?;
        }
        for (sidecar, limits) in sidecars {
            self.make_part(&part_of(path, *sidecar), limits)?;
        }
        Ok(())
    }

    fn make_part(&self, path: &Path, limits: &SidecarLimits) -> io::Result<()> {
        let SidecarLimits { memory_bytes, pids } = limits;
        let memory = self.memory_dir(path);
        if *memory_bytes > 0 {
            fs::create_dir_all(&memory)?;
            let bytes = memory_bytes.to_string();
            match self {
                Self::V1 { .. } => {
                    fs::write(memory.join("memory.limit_in_bytes"), &bytes)?;
                    if self.swap_limit() {
                        fs::write(memory.join("memory.memsw.limit_in_bytes"), &bytes)?;
                    }
                }
                Self::V2 { .. } => {
                    fs::write(memory.join("memory.max"), &bytes)?;
                    self.limit_swap(path, None)?;
                }
            }
        }
        if *pids > 0 {
            let dir = self.controller_dir("pids", path)?;
            fs::create_dir_all(&dir)?;
            fs::write(dir.join("pids.max"), pids.to_string())?;
        }
        Ok(())
    }

    /// Moves the calling process into the cgroup of a sidecar, in each hierarchy that has one.
    pub(crate) fn join_part(&self, path: &Path) -> io::Result<()> {
        self.dirs(path).filter(|dir| dir.exists()).try_for_each(|dir| self.enter(&dir))
    }

    /// Creates a cgroup without limits, only to track processes. Processes join by [`Self::join_memory`].
    pub(crate) fn make_memory(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(self.memory_dir(path))
    }

    /// Moves the calling process into a cgroup in every hierarchy. The cgroup's limits then apply to the process, and
    /// killing the cgroup kills the process.
    pub(crate) fn join(&self, path: &Path) -> io::Result<()> {
        self.dirs(path).try_for_each(|dir| self.enter(&dir))
    }

    /// Moves the calling, single-threaded process into the cgroup of a directory or, on version 2, into the cgroup's
    /// child [`REST`] if this child exists.
    fn enter(&self, dir: &Path) -> io::Result<()> {
        if let Self::V1 { .. } = self {
            return hierarchy::enter(dir);
        }
        match fs::write(dir.join(REST).join("cgroup.procs"), "0") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::write(dir.join("cgroup.procs"), "0"),
            entered => entered,
        }
    }

    /// Sets the swap limit of a cgroup on version 2: `None` forbids swap, and -1 means no limit. Does nothing on
    /// version 1.
    pub(crate) fn limit_swap(&self, path: &Path, bytes: Option<i64>) -> io::Result<()> {
        let limit = limits::swap_limit(bytes);
        match self {
            Self::V1 { .. } => Ok(()),
            Self::V2 { .. } => match fs::write(self.memory_dir(path).join(limits::SWAP_MAX), limit) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()), // no swap in this kernel
                result => result,
            },
        }
    }

    /// Returns the number of OOM kills in a cgroup and its children.
    pub(crate) fn oom_kills(&self, path: &Path) -> u64 {
        let of_parts = match self {
            Self::V1 { .. } => {
                parts(&self.memory_dir(path)).iter().filter_map(|part| Some(path.join(part.file_name()?))).collect()
            }
            Self::V2 { .. } => Vec::new(), // counted with the parent cgroup
        };
        self.kills_reported(path) + of_parts.iter().map(|part| self.kills_reported(part)).sum::<u64>()
    }

    /// Returns the number of OOM kills in a cgroup without its children.
    pub(crate) fn own_oom_kills(&self, path: &Path) -> u64 {
        let rest = path.join(REST);
        let has_rest = matches!(self, Self::V2 { .. }) && self.memory_dir(&rest).exists();
        self.kills_reported(if has_rest { &rest } else { path })
    }

    fn kills_reported(&self, path: &Path) -> u64 {
        let file = match self {
            Self::V1 { .. } => "memory.oom_control",
            Self::V2 { .. } => "memory.events",
        };
        let text = kernel_file::read_to_string(self.memory_dir(path).join(file)).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
    }

    /// Returns the unused part of a cgroup's memory limit, in bytes. Page cache counts as unused because the kernel can
    /// reclaim it. Returns `None` if there is no limit or a value is unknown.
    pub(crate) fn memory_room(&self, path: &Path) -> Option<u64> {
        let limit = match self {
            Self::V1 { .. } => "memory.limit_in_bytes",
            Self::V2 { .. } => "memory.max",
        };
        let limit = kernel_file::read_to_string(self.memory_dir(path).join(limit)).ok()?.trim().parse::<u64>().ok()?;
        Some(limit.saturating_sub(self.memory_used(path)?))
    }

    /// Returns the memory usage of a cgroup in bytes, without page cache. Returns `None` if a value is unknown.
    pub(crate) fn memory_used(&self, path: &Path) -> Option<u64> {
        let (usage, prefix) = match self {
            Self::V1 { .. } => ("memory.usage_in_bytes", "total_"),
            Self::V2 { .. } => ("memory.current", ""),
        };
        let dir = self.memory_dir(path);
        let usage = kernel_file::read_to_string(dir.join(usage)).ok()?.trim().parse::<u64>().ok()?;
        let stat = kernel_file::read_to_string(dir.join("memory.stat")).ok()?;
        Some(usage.saturating_sub(page_cache(&stat, prefix)))
    }

    /// Returns the pids of processes in a cgroup and its descendants.
    pub(crate) fn pids(&self, path: &Path) -> Vec<i32> {
        pids_in(self.memory_dir(path))
    }

    /// Kills all processes in a cgroup except the process `kept`, and waits until the killed processes have exited.
    ///
    /// # Errors
    /// Returns an error if a process does not exit within `timeout`.
    pub(crate) fn kill_all_but(&self, kept: i32, path: &Path, timeout: Duration) -> io::Result<()> {
        let deadline = Instant::now() + timeout;
        loop {
            let others: Vec<i32> = self.pids(path).into_iter().filter(|pid| *pid != kept).collect();
            if others.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let why = format!("processes {others:?} of the container did not exit after SIGKILL");
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            others.into_iter().for_each(kill);
            std::thread::sleep(Duration::from_millis(1)); // there is no notification, so this polls
        }
    }

    /// Kills all processes in a cgroup, in every hierarchy, and waits until they have exited. Each hierarchy is checked
    /// because a privileged process may have left the cgroup in one hierarchy.
    ///
    /// # Errors
    /// Returns an error if a process does not exit within `timeout`.
    pub(crate) fn kill_all(&self, path: &Path, timeout: Duration) -> io::Result<()> {
        let deadline = Instant::now() + timeout;
        for dir in self.dirs(path) {
            loop {
                let pids = pids_in(dir.clone());
                if pids.is_empty() {
                    break;
                }
                if Instant::now() >= deadline {
                    let why = format!("processes {pids:?} of the container did not exit after SIGKILL");
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                empty(&dir);
            }
        }
        Ok(())
    }

    /// Kills the processes in a cgroup and removes its directories.
    ///
    /// # Errors
    /// Returns an error if a directory cannot be removed within `timeout`, for example because a process is blocked in
    /// the kernel.
    pub(crate) fn remove(&self, path: &Path, timeout: Duration) -> io::Result<()> {
        self.dirs(path).try_for_each(|dir| remove_dir(&dir, timeout))
    }

    /// Creates the parent cgroup of containers.
    pub(crate) fn make_parent(&self, parent: &Path) -> io::Result<()> {
        // Another launcher that exits may remove shared cgroups while they are empty.
        let mut attempts = 0;
        while let Err(error) = self.dirs(parent).try_for_each(fs::create_dir_all) {
            attempts += 1;
            if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) || attempts > 100 {
                return Err(error);
            }
        }
        if self.socket_limit() {
            // The kernel patches its code when the first cgroup accounts socket buffers, and again after the last such
            // cgroup is removed. To avoid these patches, the parent cgroup accounts socket buffers without a limit.
            fs::write(self.memory_dir(parent).join("memory.kmem.tcp.limit_in_bytes"), "-1")?;
        }
        Ok(())
    }

    /// Removes the parent cgroup and its empty ancestors.
    pub(crate) fn remove_parent(&self, parent: &Path) {
        for path in parent.ancestors().filter(|path| !path.as_os_str().is_empty()) {
            for dir in self.dirs(path) {
                let _ = fs::remove_dir(dir);
            }
        }
    }
}

/// Kills the processes in a cgroup directory, and removes the directory.
///
/// # Errors
/// Returns the same errors as [`Hierarchies::remove`].
pub(crate) fn remove_dir(dir: &Path, timeout: Duration) -> io::Result<()> {
    let deadline = Instant::now() + timeout;
    loop {
        let error = match fs::remove_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => error,
            _ => return Ok(()),
        };
        let busy = matches!(error.raw_os_error(), Some(libc::EBUSY | libc::ENOTEMPTY));
        if !busy || Instant::now() >= deadline {
            return Err(io::Error::new(error.kind(), format!("cannot remove the cgroup {}: {error}", dir.display())));
        }
        empty(dir);
    }
}

/// Kills the processes in a cgroup directory and in its child cgroups, removes the child cgroups, and sleeps for 1 ms.
fn empty(dir: &Path) {
    let procs = kernel_file::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    procs.lines().filter_map(|line| line.parse().ok()).for_each(kill);
    for part in parts(dir) {
        empty(&part);
        let _ = fs::remove_dir(part);
    }
    // There is no notification when a cgroup becomes removable, so this polls.
    std::thread::sleep(Duration::from_millis(1));
}

/// Returns the pids of processes in a cgroup directory and its descendants.
fn pids_in(dir: PathBuf) -> Vec<i32> {
    let mut pids = Vec::new();
    let mut waiting = vec![dir];
    while let Some(dir) = waiting.pop() {
        let procs = kernel_file::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        pids.extend(procs.lines().filter_map(|line| line.parse::<i32>().ok()));
        waiting.extend(parts(&dir));
    }
    pids
}

/// Returns the child cgroups of a directory.
fn parts(dir: &Path) -> Vec<PathBuf> {
    // A cgroup without children has a link count of 2: skip reading its many files.
    if fs::metadata(dir).map_or(true, |dir| dir.nlink() == 2) {
        return Vec::new();
    }
    let below = fs::read_dir(dir).into_iter().flatten().flatten();
    below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

fn kill(pid: i32) {
    signal(pid, libc::SIGKILL);
}

/// Signals a process, if it exists.
fn signal(pid: i32, number: i32) {
    if let Ok(pidfd) = executor_sys::process::pidfd(pid) {
        let _ = executor_sys::process::pidfd_signal(std::os::fd::AsFd::as_fd(&pidfd), number);
    }
}

/// Returns true if /proc/meminfo shows that the host has no swap.
fn has_no_swap(meminfo: &str) -> bool {
    meminfo.lines().any(|line| line.strip_prefix("SwapTotal:").is_some_and(|rest| rest.trim() == "0 kB"))
}

/// Returns the bytes of page cache in a memory.stat.
fn page_cache(stat: &str, prefix: &str) -> u64 {
    let bytes = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(prefix)?.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|bytes| bytes.parse::<u64>().ok()).unwrap_or(0)
    };
    bytes("inactive_file") + bytes("active_file")
}
