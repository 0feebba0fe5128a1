//! Manages cpuset cgroups of containers that request CPUs and memory nodes.
//!
//! On version 1 cpuset is a separate hierarchy, which other containers do not join. libcontainer joins every hierarchy
//! that is mounted, so this hierarchy is hidden from libcontainer and kept open here. On version 2 the settings are
//! files of the container's cgroup.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use executor_core::cpulist::CpuList;
use executor_core::plan::HostOptions;
use executor_core::validate::Violation;
use executor_core::validate::ViolationReason::OutOfRange;
use executor_sys::mount::open_dir;
use executor_sys::mountinfo::{self, Mount};

use crate::cgroup::{ROOT, remove_dir};

/// Files on cgroup version 1, each with the file of its effective value.
const FILES_V1: [(&str, &str); 2] =
    [("cpuset.cpus", "cpuset.effective_cpus"), ("cpuset.mems", "cpuset.effective_mems")];
/// Files on cgroup version 2, each with the file of its effective value.
const FILES_V2: [(&str, &str); 2] =
    [("cpuset.cpus", "cpuset.cpus.effective"), ("cpuset.mems", "cpuset.mems.effective")];

/// Name of an empty cgroup below the parent cgroup. Containers without their own cpuset see this cgroup. No container
/// id begins with a dot.
pub(crate) const SHOWN: &str = ".shown";

#[derive(Debug)]
pub(crate) struct Cpusets {
    root: OwnedFd,
    /// True if cpuset is a separate hierarchy, in which this module creates the cgroups.
    separate: bool,
}

impl Cpusets {
    /// Opens the cpuset hierarchy, if there is one. Must be called before hierarchies are detached.
    pub(crate) fn find() -> io::Result<Option<Self>> {
        let found = Self::among(&mountinfo::parse(&fs::read("/proc/self/mountinfo")?));
        let Some((mount, separate)) = found else { return Ok(None) };
        let has = separate || {
            let controllers = fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
            controllers.split_whitespace().any(|name| name == "cpuset")
        };
        has.then(|| Ok(Self { root: open_dir(&mount)?, separate })).transpose()
    }

    fn among(mounts: &[Mount]) -> Option<(PathBuf, bool)> {
        if let Some(mount) = mounts.iter().find(|mount| mount.kind == "cgroup2" && mount.point == Path::new(ROOT)) {
            return Some((mount.point.clone(), false));
        }
        let mut below = mounts.iter().filter(|mount| mount.point.starts_with(ROOT));
        let mount = below.find(|mount| mount.kind == "cgroup" && mount.has_option("cpuset"))?;
        Some((mount.point.clone(), true))
    }

    fn files(&self) -> &'static [(&'static str, &'static str); 2] {
        if self.separate { &FILES_V1 } else { &FILES_V2 }
    }

    /// Returns the directory of a cgroup, relative to the open root.
    fn dir(&self, cgroup: &Path) -> PathBuf {
        Path::new("/proc/self/fd").join(self.root.as_raw_fd().to_string()).join(cgroup)
    }

    /// Returns the CPUs and memory nodes that are available to cgroups below a parent.
    pub(crate) fn available(&self, parent: &Path) -> io::Result<[CpuList; 2]> {
        let one = |effective: &str| {
            // If the parent does not exist yet or has no such file, use its nearest ancestor.
            let read = parent.ancestors().find_map(|cgroup| {
                let text = fs::read_to_string(self.dir(cgroup).join(effective)).ok()?;
                Some(text).filter(|text| !text.trim().is_empty())
            });
            let text = read.ok_or_else(|| {
                let why = format!("{effective} is missing or empty in the cgroup {} and its parents", parent.display());
                io::Error::new(io::ErrorKind::NotFound, why)
            })?;
            text.parse::<CpuList>().map_err(io::Error::other)
        };
        let [(_, cpus), (_, mems)] = *self.files();
        Ok([one(cpus)?, one(mems)?])
    }

    /// Sets the CPUs and memory nodes of a container whose only process is its init.
    pub(crate) fn confine(&self, cgroup: &Path, init: i32, options: &HostOptions) -> io::Result<()> {
        let dir = self.dir(cgroup);
        for ((file, _), list) in self.files().iter().zip([&options.cpus, &options.memory_nodes]) {
            if !list.is_empty() {
                fs::write(dir.join(file), list).map_err(|error| about(file, &error))?;
            }
        }
        if self.separate {
            fs::write(dir.join("cgroup.procs"), init.to_string()).map_err(|error| about("cgroup.procs", &error))?;
        }
        Ok(())
    }

    /// Returns the files to write, with their new contents, to change a container's own cpuset cgroup from `old` to
    /// `new`.
    pub(crate) fn changes(&self, cgroup: &Path, old: &HostOptions, new: &HostOptions) -> Vec<(PathBuf, String)> {
        let lists = [(&old.cpus, &new.cpus), (&old.memory_nodes, &new.memory_nodes)];
        let files = self.files().iter().zip(lists).filter(|(_, (old, new))| old != new);
        files.map(|((file, _), (_, new))| (self.dir(cgroup).join(file), new.clone())).collect()
    }

    /// Creates a cgroup and its ancestors. Copies CPUs and memory nodes from the parent: a new cgroup has none, and
    /// accepts no process until they are set.
    fn make(&self, cgroup: &Path) -> io::Result<()> {
        let mut above: Vec<&Path> = cgroup.ancestors().collect();
        above.reverse();
        for pair in above.windows(2) {
            let (parent, dir) = (self.dir(pair[0]), self.dir(pair[1]));
            match fs::create_dir(&dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(about("cgroup", &error)),
                _ => {}
            }
            for (file, _) in self.files() {
                if fs::read_to_string(dir.join(file))?.trim().is_empty() {
                    let list = fs::read_to_string(parent.join(file))?;
                    fs::write(dir.join(file), list.trim()).map_err(|error| about(file, &error))?;
                }
            }
        }
        Ok(())
    }

    /// Creates the parent cgroup of containers, and the cgroup that containers without their own cpuset see.
    pub(crate) fn make_parent(&self, parent: &Path) -> io::Result<()> {
        if self.separate { self.make(&parent.join(SHOWN)) } else { Ok(()) }
    }

    /// Creates the cgroup of a container. Must be called before `confine`.
    ///
    /// # Errors
    /// Returns an error if the cgroup cannot be created or the kernel rejects its CPUs or memory nodes.
    pub(crate) fn prepare(&self, cgroup: &Path) -> io::Result<()> {
        if self.separate { self.make(cgroup) } else { Ok(()) }
    }

    /// Moves the calling, single-threaded process into a container's cgroup.
    pub(crate) fn join(&self, cgroup: &Path) -> io::Result<()> {
        if self.separate { fs::write(self.dir(cgroup).join("tasks"), "0") } else { Ok(()) }
    }

    /// Removes a container's own cgroup in the cpuset hierarchy, if it has one.
    ///
    /// # Errors
    /// Returns an error if a process in the cgroup does not exit within `timeout`.
    pub(crate) fn remove(&self, cgroup: &Path, timeout: Duration) -> io::Result<()> {
        if self.separate { remove_dir(&self.dir(cgroup), timeout) } else { Ok(()) }
    }

    /// Removes the parent cgroup of containers and its empty ancestors.
    pub(crate) fn remove_parent(&self, parent: &Path) {
        if self.separate {
            let _ = fs::remove_dir(self.dir(&parent.join(SHOWN)));
            for path in parent.ancestors().filter(|path| !path.as_os_str().is_empty()) {
                let _ = fs::remove_dir(self.dir(path));
            }
        }
    }
}

impl AsFd for Cpusets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

/// Returns a violation for each list with a number that is not among the available CPUs or memory nodes.
pub(crate) fn unavailable(options: &HostOptions, [cpus, mems]: &[CpuList; 2]) -> Vec<Violation> {
    let asked = [
        ("limits.cpuset_cpus", "processor", &options.cpus, cpus),
        ("limits.cpuset_mems", "memory node", &options.memory_nodes, mems),
    ];
    let fault = |(field, what, list, available): (&str, &str, &String, &CpuList)| {
        let missing = list.parse::<CpuList>().ok()?.first_missing_in(available)?;
        let why = format!("{what} {missing} is not available to containers on this host; available: {available}");
        Some(Violation::new(field, OutOfRange.because(why)))
    };
    asked.into_iter().filter_map(fault).collect()
}

fn about(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {}", crate::errors::plain(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn among(lines: &[&str]) -> Option<(PathBuf, bool)> {
        Cpusets::among(&mountinfo::parse(lines.join("\n").as_bytes()))
    }

    #[test]
    fn the_hierarchy_is_found_among_the_mounts() {
        let v1 = "32 25 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset";
        let cpu = "31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct";
        let v2 = "35 24 0:31 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";
        let elsewhere = "36 24 0:32 / /mnt/cpuset rw - cgroup cgroup rw,cpuset";
        let unified = "34 25 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(among(&[cpu, unified, v1]), Some(("/sys/fs/cgroup/cpuset".into(), true)));
        assert_eq!(among(&[v2]), Some((ROOT.into(), false)));
        assert_eq!((among(&[cpu, unified, elsewhere]), among(&[])), (None, None));
    }

    /// Uses ordinary directories as cgroups. The test creates the files that the kernel would create.
    #[test]
    fn new_cgroup_inherits_parent_cpuset() {
        let dir = tempfile::tempdir().unwrap();
        let cpusets = Cpusets { root: open_dir(dir.path()).unwrap(), separate: true };
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (level, cpus) in [("", "0-3\n"), ("e/", "\n"), ("e/c/", "\n")] {
            write(&format!("{level}cpuset.cpus"), cpus);
            write(&format!("{level}cpuset.mems"), if level.is_empty() { "0\n" } else { "\n" });
        }
        write("cpuset.effective_cpus", "0-3\n");
        write("cpuset.effective_mems", "0\n");
        let options = HostOptions { cpus: "1-2".into(), ..HostOptions::default() };
        cpusets.prepare(Path::new("e/c")).unwrap();
        cpusets.confine(Path::new("e/c"), 17, &options).unwrap();
        let read = |path: &str| fs::read_to_string(dir.path().join(path)).unwrap();
        assert_eq!((read("e/cpuset.cpus"), read("e/c/cpuset.cpus")), ("0-3".into(), "1-2".into()));
        assert_eq!((read("e/c/cpuset.mems"), read("e/c/cgroup.procs")), ("0".into(), "17".into()));
        let [cpus, mems] = cpusets.available(Path::new("e/none")).unwrap();
        assert_eq!((cpus.to_string(), mems.to_string()), ("0-3".into(), "0".into()));
    }
}
