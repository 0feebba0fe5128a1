//! Manages cgroups of transfer workers. Workers are processes of executord that work for a container.
//!
//! ```text
//! CGROUP_PARENT/ID             cgroup of the container
//! CGROUP_PARENT/.workers-ID    cgroup of its workers: the CPU limits of the container, no memory limit
//! ```
//! The workers' cgroup is a sibling of the container's cgroup. Therefore the container does not see the workers, and
//! the counters and the removal of the container's cgroup do not include the workers. On version 1 the workers' cgroup
//! exists only in the cpu hierarchy. Container ids do not begin with a dot.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use executor_core::plan::Limits;

use super::{Hierarchies, remove_dir};
use crate::errors::at;

/// Controller of CPU time.
const CPU: &str = "cpu";

/// Returns the path of the cgroup of a container's workers.
fn workers_of(container: &Path) -> PathBuf {
    let name = container.file_name().unwrap_or_default().to_string_lossy();
    container.with_file_name(format!(".workers-{name}"))
}

impl Hierarchies {
    /// Moves a worker into the cgroup of its container's workers, with the container's CPU limits. Creates the cgroup
    /// if it does not exist. On a host without the cpu controller the worker is not moved.
    ///
    /// # Errors
    /// Returns an error with the path if the kernel rejects a value.
    pub(crate) fn admit_worker(&self, container: &Path, limits: &Limits, worker: i32) -> io::Result<()> {
        if !self.controllers().contains(CPU) {
            return Ok(());
        }
        let path = workers_of(container);
        let dir = self.controller_dir(CPU, &path)?;
        match fs::create_dir(&dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(at(&dir, &error)),
            _ => {}
        }
        self.limit(&path, &limits.processors())?;
        let procs = dir.join("cgroup.procs");
        fs::write(&procs, worker.to_string()).map_err(|error| at(&procs, &error))
    }

    /// Returns the directory of the cgroup of a container's workers, which may not exist.
    ///
    /// # Errors
    /// Returns an error if the host has no cpu controller.
    pub(super) fn workers_dir(&self, container: &Path) -> io::Result<PathBuf> {
        self.controller_dir(CPU, &workers_of(container))
    }

    /// Removes the cgroup of a container's workers if no worker is in it.
    pub(crate) fn remove_idle_workers(&self, container: &Path) {
        if let Ok(dir) = self.workers_dir(container) {
            let _ = fs::remove_dir(dir); // missing, or a worker of another transfer is in it
        }
    }

    /// Kills the workers of an exited container, and removes their cgroup.
    ///
    /// # Errors
    /// Returns the same errors as [`Hierarchies::remove`].
    pub(crate) fn remove_workers(&self, container: &Path, timeout: Duration) -> io::Result<()> {
        self.workers_dir(container).map_or(Ok(()), |dir| remove_dir(&dir, timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_have_processor_limits_alone() {
        let dir = tempfile::tempdir().unwrap();
        let v1 = Hierarchies::at(&[dir.path().join("memory"), dir.path().join("cpu,cpuacct")]);
        let v2 = Hierarchies::V2 { mount: dir.path().join("v2") };
        ["memory/e", "cpu,cpuacct/e", "v2/e"].iter().for_each(|one| fs::create_dir_all(dir.path().join(one)).unwrap());
        fs::write(dir.path().join("v2/cgroup.controllers"), "cpu memory").unwrap();
        let limits = Limits {
            memory_bytes: 1 << 20,
            pids: 7,
            cpu_millis: 50,
            nofile: 9,
            disk_bytes: 1,
            cpu_weight: 100,
            io_weight: 5,
            swap_bytes: Some(0),
            memory_reservation_bytes: 1,
            cpu_period_us: 0,
            cpu_quota_us: 0,
            cpu_shares: 0,
        };
        for (hierarchies, below, files) in [
            (
                &v1,
                "cpu,cpuacct",
                &["cgroup.procs 12", "cpu.cfs_period_us 100000", "cpu.cfs_quota_us 5000", "cpu.shares 1024"][..],
            ),
            (&v2, "v2", &["cgroup.procs 12", "cpu.max 5000 100000", "cpu.weight 100"]),
        ] {
            for worker in [11, 12] {
                hierarchies.admit_worker(Path::new("e/c"), &limits, worker).unwrap();
            }
            let group = dir.path().join(below).join("e/.workers-c");
            let mut written: Vec<String> = fs::read_dir(&group)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .map(|name| format!("{name} {}", fs::read_to_string(group.join(&name)).unwrap()))
                .collect();
            written.sort_unstable();
            assert_eq!(written, files);
        }
        assert!(!dir.path().join("memory/e/.workers-c").exists());
        // This version 1 host has no cpu controller.
        let without = Hierarchies::at(&[dir.path().join("memory")]);
        without.admit_worker(Path::new("e/c"), &limits, 13).unwrap();
        without.remove_workers(Path::new("e/c"), Duration::ZERO).unwrap();
    }
}
