//! Cgroups: where a container's are, what they tell, and how they go.
//!
//! This module makes, limits, joins, asks, kills and removes them, by path alone. On a version 1 host a container has one
//! directory in each hierarchy, all of the same relative path.

mod devices;
mod hierarchy;
mod limits;
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
use hierarchy::Hierarchy;
pub(crate) use pause::Stopped;

/// Directory that cgroup file systems are mounted in.
pub(crate) const ROOT: &str = "/sys/fs/cgroup";
/// Controllers of version 1 whose hierarchies containers use. Others are taken out of the launcher's mount namespace.
const USED: [&str; 5] = ["cpu", "cpuacct", "devices", "memory", "pids"];

/// Part of a container's cgroup on version 2 where all processes are that no other part has: there only a cgroup without
/// processes of its own can have parts with limits.
const REST: &str = "rest";

/// Returns the cgroup of a sidecar that has limits of its own, below its container's.
pub(crate) fn part_of(container: &Path, sidecar: usize) -> PathBuf {
    container.join(format!("sidecar-{sidecar}"))
}

/// The mounted hierarchies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hierarchies {
    /// Version 1: a directory for each controller.
    V1 {
        /// Version 2 is there, without controllers.
        hybrid: bool,
        /// Those in use.
        all: Vec<Hierarchy>,
        /// Mount point of the one that accounts memory.
        memory: PathBuf,
        /// Mount point of the one of processors, if the host has it. Containers join no cgroup there unless they ask for processors.
        cpuset: Option<PathBuf>,
    },
    /// Version 2: a single tree.
    V2 {
        /// Mount point.
        mount: PathBuf,
    },
}

/// Hierarchies among the mounts of a host.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    V1 { hybrid: bool, used: Vec<Mount>, unused: Vec<Mount> },
    V2 { mount: PathBuf },
}

impl Hierarchies {
    /// Looks at what is mounted, and changes that for version 1: only in the caller's own mount namespace.
    ///
    /// # Errors
    /// No memory is accounted; a mount that cannot be made.
    pub(crate) fn find() -> io::Result<Self> {
        let missing = || io::Error::other(format!("no memory cgroup hierarchy is mounted below {ROOT}"));
        match Self::among(&mountinfo::parse(&fs::read("/proc/self/mountinfo")?)) {
            Some(Found::V2 { mount }) => Ok(Self::V2 { mount }),
            Some(Found::V1 { hybrid, used, unused }) => {
                let (all, cpuset) = Hierarchy::take(&used, &unused, &fs::read_to_string("/proc/self/cgroup")?)?;
                let memory = all.iter().find(|one| one.controllers.iter().any(|name| name == "memory"));
                let memory = memory.ok_or_else(missing)?.mount.clone();
                Ok(Self::V1 { hybrid, all, memory, cpuset })
            }
            None => Err(missing()),
        }
    }

    /// Returns the hierarchies among these mounts, if containers can be made with them.
    fn among(mounts: &[Mount]) -> Option<Found> {
        if let Some(mount) = mounts.iter().find(|mount| mount.kind == "cgroup2" && mount.point == Path::new(ROOT)) {
            return Some(Found::V2 { mount: mount.point.clone() });
        }
        let is_of = |mount: &&Mount| mount.point.starts_with(ROOT) && matches!(&*mount.kind, "cgroup" | "cgroup2");
        let hybrid = mounts.iter().filter(is_of).any(|mount| mount.kind == "cgroup2");
        let is_used =
            |mount: &Mount| mount.kind == "cgroup" && USED.iter().any(|controller| mount.has_option(controller));
        let (used, unused): (Vec<Mount>, Vec<Mount>) = mounts.iter().filter(is_of).cloned().partition(is_used);
        used.iter().any(|mount| mount.has_option("memory")).then_some(Found::V1 { hybrid, used, unused })
    }

    /// Hierarchies of version 1 in directories that are named after their controllers; the first one accounts memory.
    #[cfg(test)]
    fn at(mounts: &[PathBuf]) -> Self {
        let all = mounts.iter().cloned().map(Hierarchy::from_mount).collect();
        Self::V1 { hybrid: false, all, memory: mounts[0].clone(), cpuset: None }
    }

    /// `v1`, `hybrid` or `v2`.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::V1 { hybrid: false, .. } => "v1",
            Self::V1 { hybrid: true, .. } => "hybrid",
            Self::V2 { .. } => "v2",
        }
    }

    /// The directories of a cgroup, one in each hierarchy.
    fn dirs<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = PathBuf> + 'a {
        let (version1, version2) = match self {
            Self::V1 { all, .. } => (all.as_slice(), None),
            Self::V2 { mount } => (&[][..], Some(mount)),
        };
        version1.iter().map(|one| &one.mount).chain(version2).map(move |mount| mount.join(path))
    }

    /// Makes a container's cgroup. On version 2 libcontainer does when it makes the container, and devices have no rules.
    ///
    /// # Errors
    /// It exists; the file, and why the kernel refused.
    pub(crate) fn make(&self, path: &Path, devices: &Devices<'_>) -> io::Result<()> {
        match self {
            Self::V1 { all, .. } => all.iter().try_for_each(|one| one.make(path, devices)),
            Self::V2 { .. } => Ok(()),
        }
    }

    /// Does something while the calling process, which has one thread, is in a container's cgroup: a process that it makes meanwhile
    /// is in it from its beginning.
    ///
    /// # Errors
    /// A cgroup that cannot be joined or left.
    pub(crate) fn within<T>(&self, path: &Path, act: impl FnOnce() -> T) -> io::Result<T> {
        let Self::V1 { all, .. } = self else { return Ok(act()) };
        let joined = all.iter().try_for_each(|one| hierarchy::enter(&one.mount.join(path)));
        let done = joined.map(|()| act());
        all.iter().try_for_each(Hierarchy::leave)?;
        done
    }

    /// The directory of a cgroup in the hierarchy of a controller.
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

    /// A limit on swap can be set: the kernel accounts it.
    pub(crate) fn swap_limit(&self) -> bool {
        match self {
            Self::V1 { memory, .. } => memory.join("memory.memsw.limit_in_bytes").exists(),
            Self::V2 { .. } => false, // libcontainer leaves a limit of 0 out; `memory.swap.max` is set by us
        }
    }

    /// Buffers of TCP and UDP sockets are counted apart from other memory, and only where they have a limit: version 1.
    /// Version 2 counts them as any other memory.
    pub(crate) fn socket_limit(&self) -> bool {
        match self {
            Self::V1 { memory, .. } => memory.join("memory.kmem.tcp.limit_in_bytes").exists(),
            Self::V2 { .. } => false,
        }
    }

    /// The kernel accounts swap, or there is none: a limit on memory holds whatever is swapped.
    pub(crate) fn holds_swap(&self) -> bool {
        let has_none = || has_no_swap(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
        matches!(self, Self::V2 { .. }) || self.swap_limit() || has_none()
    }

    /// Names of the controllers that containers can have, as version 2 spells them.
    pub(crate) fn controllers(&self) -> BTreeSet<String> {
        match self {
            Self::V1 { all, .. } => all.iter().flat_map(|one| one.controllers.iter().cloned()).collect(),
            Self::V2 { mount } => {
                let text = fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
                text.split_whitespace().map(str::to_owned).collect()
            }
        }
    }

    /// Moves the calling process into a cgroup's memory accounting: pages that it touches from now on are the
    /// container's.
    pub(crate) fn join_memory(&self, path: &Path) -> io::Result<()> {
        self.enter(&self.memory_dir(path))
    }

    /// Tells whether a process moves between cgroups without the kernel waiting: a thread does, and only version 1 has it move alone.
    pub(crate) fn moves_at_once(&self) -> bool {
        matches!(self, Self::V1 { .. })
    }

    /// Does something while what the calling process, which has one thread, touches is the memory of a container's cgroup.
    ///
    /// # Errors
    /// A cgroup that cannot be joined or left; version 2.
    pub(crate) fn within_memory<T>(&self, path: &Path, act: impl FnOnce() -> T) -> io::Result<T> {
        let Self::V1 { all, memory, .. } = self else { return Err(io::ErrorKind::Unsupported.into()) };
        let own = all.iter().find(|one| one.mount == *memory).ok_or(io::ErrorKind::NotFound)?;
        hierarchy::enter(&memory.join(path))?;
        let done = act();
        own.leave()?;
        Ok(done)
    }

    /// Makes parts of a container's cgroup for sidecars with limits of their own.
    ///
    /// # Errors
    /// A controller is missing.
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

    /// Moves the calling process, which is in the container's cgroup, into one of its parts.
    pub(crate) fn join_part(&self, path: &Path) -> io::Result<()> {
        self.dirs(path).filter(|dir| dir.exists()).try_for_each(|dir| self.enter(&dir))
    }

    /// Makes a cgroup that has no limits, only to know which processes are in it. [`Self::join_memory`] enters it.
    pub(crate) fn make_memory(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(self.memory_dir(path))
    }

    /// Moves the calling process into a cgroup of every hierarchy: its limits hold from now on, and its end is this one's.
    pub(crate) fn join(&self, path: &Path) -> io::Result<()> {
        self.dirs(path).try_for_each(|dir| self.enter(&dir))
    }

    /// Moves the calling process, which has one thread, into a directory's cgroup: on version 2, where that has parts, into the
    /// one for what no other part has.
    fn enter(&self, dir: &Path) -> io::Result<()> {
        if let Self::V1 { .. } = self {
            return hierarchy::enter(dir);
        }
        match fs::write(dir.join(REST).join("cgroup.procs"), "0") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::write(dir.join("cgroup.procs"), "0"),
            entered => entered,
        }
    }

    /// Limits the swap of a cgroup, where that is the launcher's to do: to none where nothing is asked for, and to any where
    /// that is -1.
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

    /// Returns how many processes the kernel killed in the cgroup and its parts because a memory limit was reached.
    pub(crate) fn oom_kills(&self, path: &Path) -> u64 {
        let of_parts = match self {
            Self::V1 { .. } => {
                parts(&self.memory_dir(path)).iter().filter_map(|part| Some(path.join(part.file_name()?))).collect()
            }
            Self::V2 { .. } => Vec::new(), // counted with the cgroup above
        };
        self.kills_told(path) + of_parts.iter().map(|part| self.kills_told(part)).sum::<u64>()
    }

    /// Returns the same without the parts of the cgroup.
    pub(crate) fn own_oom_kills(&self, path: &Path) -> u64 {
        let rest = path.join(REST);
        let has_rest = matches!(self, Self::V2 { .. }) && self.memory_dir(&rest).exists();
        self.kills_told(if has_rest { &rest } else { path })
    }

    fn kills_told(&self, path: &Path) -> u64 {
        let file = match self {
            Self::V1 { .. } => "memory.oom_control",
            Self::V2 { .. } => "memory.events",
        };
        let text = kernel_file::read_to_string(self.memory_dir(path).join(file)).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
    }

    /// Bytes that a cgroup's memory limit still leaves, counting what the kernel can take back from its page cache.
    /// `None` where there is no limit, or it cannot be told.
    pub(crate) fn memory_room(&self, path: &Path) -> Option<u64> {
        let (limit, usage, prefix) = match self {
            Self::V1 { .. } => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
            Self::V2 { .. } => ("memory.max", "memory.current", ""),
        };
        let dir = self.memory_dir(path);
        let number = |file: &str| kernel_file::read_to_string(dir.join(file)).ok()?.trim().parse::<u64>().ok();
        let (limit, usage) = (number(limit)?, number(usage)?);
        let stat = kernel_file::read_to_string(dir.join("memory.stat")).ok()?;
        Some(limit.saturating_sub(usage.saturating_sub(page_cache(&stat, prefix))))
    }

    /// Pids of the processes in a cgroup and in those below it.
    pub(crate) fn pids(&self, path: &Path) -> Vec<i32> {
        pids_in(self.memory_dir(path))
    }

    /// Kills what is in a cgroup but one process, and stays until nothing else is.
    ///
    /// # Errors
    /// A process that cannot die within `patience`.
    pub(crate) fn kill_all_but(&self, kept: i32, path: &Path, patience: Duration) -> io::Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            let others: Vec<i32> = self.pids(path).into_iter().filter(|pid| *pid != kept).collect();
            if others.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "a process of the container cannot be killed"));
            }
            others.into_iter().for_each(kill);
            std::thread::sleep(Duration::from_millis(1)); // a dying process does not tell when it is gone
        }
    }

    /// Kills what is in a cgroup, in any hierarchy, and stays until nothing is: a privileged process can have left one of
    /// them.
    ///
    /// # Errors
    /// A process that cannot die within `patience`.
    pub(crate) fn kill_all(&self, path: &Path, patience: Duration) -> io::Result<()> {
        let deadline = Instant::now() + patience;
        for dir in self.dirs(path) {
            while !pids_in(dir.clone()).is_empty() {
                if Instant::now() >= deadline {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "a process of the container cannot be killed"));
                }
                empty(&dir);
            }
        }
        Ok(())
    }

    /// Kills what is in a cgroup and removes its directories.
    ///
    /// # Errors
    /// A directory that cannot be removed within `patience`: the kernel holds a process that cannot die.
    pub(crate) fn remove(&self, path: &Path, patience: Duration) -> io::Result<()> {
        self.dirs(path).try_for_each(|dir| remove_dir(&dir, patience))
    }

    /// Makes the cgroup that containers' own are made below.
    pub(crate) fn make_parent(&self, parent: &Path) -> io::Result<()> {
        // Another launcher that ends may remove what is shared while it is empty.
        let mut attempts = 0;
        while let Err(error) = self.dirs(parent).try_for_each(fs::create_dir_all) {
            attempts += 1;
            if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) || attempts > 100 {
                return Err(error);
            }
        }
        if self.socket_limit() {
            // The kernel changes its own code when the first cgroup counts buffers of sockets, and back when the last one has gone:
            // so one counts all the time, without a limit.
            fs::write(self.memory_dir(parent).join("memory.kmem.tcp.limit_in_bytes"), "-1")?;
        }
        Ok(())
    }

    /// Removes the parent again, and its own parents as far as they are empty.
    pub(crate) fn remove_parent(&self, parent: &Path) {
        for path in parent.ancestors().filter(|path| !path.as_os_str().is_empty()) {
            for dir in self.dirs(path) {
                let _ = fs::remove_dir(dir);
            }
        }
    }
}

/// Kills what is in a directory of a cgroup, and removes it.
///
/// # Errors
/// As [`Hierarchies::remove`].
pub(crate) fn remove_dir(dir: &Path, patience: Duration) -> io::Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        let error = match fs::remove_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => error,
            _ => return Ok(()),
        };
        let busy = matches!(error.raw_os_error(), Some(libc::EBUSY | libc::ENOTEMPTY));
        if !busy || Instant::now() >= deadline {
            return Err(io::Error::new(error.kind(), format!("cgroup {}: {error}", dir.display())));
        }
        empty(dir);
    }
}

/// Kills the processes of one directory, removes cgroups that were made below it, and gives the kernel time.
fn empty(dir: &Path) {
    let procs = kernel_file::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    procs.lines().filter_map(|line| line.parse().ok()).for_each(kill);
    for part in parts(dir) {
        empty(&part);
        let _ = fs::remove_dir(part);
    }
    // Neither version 1 nor a dying process tells when a cgroup becomes removable: it is asked again.
    std::thread::sleep(Duration::from_millis(1));
}

/// Pids of the processes in a cgroup's directory and in those below it.
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

/// Returns the cgroups right below one.
fn parts(dir: &Path) -> Vec<PathBuf> {
    // One that has none has no link but its own two: the many files are not looked at.
    if fs::metadata(dir).map_or(true, |dir| dir.nlink() == 2) {
        return Vec::new();
    }
    let below = fs::read_dir(dir).into_iter().flatten().flatten();
    below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

fn kill(pid: i32) {
    signal(pid, libc::SIGKILL);
}

/// Signals a process, if it is there.
fn signal(pid: i32, number: i32) {
    if let Ok(pidfd) = executor_sys::process::pidfd(pid) {
        let _ = executor_sys::process::pidfd_signal(std::os::fd::AsFd::as_fd(&pidfd), number);
    }
}

/// Returns whether a host has no swap, by its /proc/meminfo.
fn has_no_swap(meminfo: &str) -> bool {
    meminfo.lines().any(|line| line.strip_prefix("SwapTotal:").is_some_and(|rest| rest.trim() == "0 kB"))
}

/// Returns the bytes of page cache that a memory.stat tells.
fn page_cache(stat: &str, prefix: &str) -> u64 {
    let bytes = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(prefix)?.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|bytes| bytes.parse::<u64>().ok()).unwrap_or(0)
    };
    bytes("inactive_file") + bytes("active_file")
}
