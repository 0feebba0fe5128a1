//! Manages cgroups of executed processes. Each cgroup contains an executed process and all of its descendants,
//! including descendants in other sessions.
//!
//! ```text
//! CGROUP_PARENT/ID                cgroup of the container, whose limits also apply to executed processes
//! CGROUP_PARENT/ID/exec-PID       cgroup of an executed process and its descendants; PID is the supervisor's pid
//! ```
//! On version 1 the cgroup exists in one hierarchy only: the pids hierarchy, if the host has one. Only a process that
//! may write to the cgroup file system, as in a privileged container, can leave the cgroup.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use executor_sys::kernel_file;

use super::{Hierarchies, REST, hierarchy, kill, pids_in, remove_dir};
use crate::errors::at;

/// Time limit for killed processes to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Cgroup of an executed process. On drop its processes are killed, and the cgroup is removed.
#[derive(Debug)]
pub(crate) struct ExecCgroup {
    dir: PathBuf,
    /// Directory of the container's cgroup.
    container: PathBuf,
    is_version_2: bool,
    /// Time limit for killed processes to exit on drop.
    timeout: Duration,
}

impl Hierarchies {
    /// Creates the cgroup of a process that a supervisor executes in a container. If an earlier supervisor with the
    /// same pid was killed, its leftover processes are killed.
    ///
    /// # Errors
    /// Returns an error with the path if a cgroup cannot be created. ENOENT means that the container is exiting.
    pub(crate) fn make_exec(&self, container: &Path, supervisor: u32) -> io::Result<ExecCgroup> {
        let cgroup = self.exec_cgroup(container, supervisor, EXIT_TIMEOUT);
        if let Err(error) = fs::create_dir(&cgroup.dir) {
            if error.kind() == io::ErrorKind::AlreadyExists {
                cgroup.kill_all(EXIT_TIMEOUT)?;
            } else {
                let error = at(&cgroup.dir, &error);
                std::mem::forget(cgroup); // does not exist
                return Err(error);
            }
        }
        if !cgroup.is_version_2 {
            // Programs look for the limit in their own cgroup. Without the pids controller, the file `pids.max` does
            // not exist.
            let limit = kernel_file::read_to_string(cgroup.container.join("pids.max")).unwrap_or_default();
            let _ = fs::write(cgroup.dir.join("pids.max"), limit.trim());
        }
        Ok(cgroup)
    }

    /// Returns the cgroup of a supervisor's process. The cgroup may not exist. On drop, killed processes have
    /// `timeout` to exit.
    pub(crate) fn exec_cgroup(&self, container: &Path, supervisor: u32, timeout: Duration) -> ExecCgroup {
        let container = match self {
            Self::V1 { all, memory, .. } => {
                let pids = all.iter().find(|one| one.controllers.iter().any(|name| name == "pids"));
                let other = || all.iter().find(|one| one.mount != *memory);
                pids.or_else(other).map_or(memory, |one| &one.mount).join(container)
            }
            Self::V2 { mount } => {
                let whole = mount.join(container);
                let rest = whole.join(REST);
                if rest.exists() { rest } else { whole }
            }
        };
        let dir = container.join(format!("exec-{supervisor}"));
        ExecCgroup { dir, container, is_version_2: matches!(self, Self::V2 { .. }), timeout }
    }
}

impl ExecCgroup {
    /// Moves the calling, single-threaded process into the cgroup. On version 1, first calls `join_container`, which
    /// moves the process into the container's cgroups.
    ///
    /// # Errors
    /// Returns the kernel's error if the process cannot be moved.
    pub(crate) fn join(&self, join_container: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if self.is_version_2 {
            return fs::write(self.dir.join("cgroup.procs"), "0"); // a child of the container's only cgroup
        }
        join_container()?;
        hierarchy::enter(&self.dir)
    }

    /// Sends SIGKILL to all processes once. Also prevents further forks, if the host has the pids controller (version
    /// 1) or the kernel has `cgroup.kill` (version 2).
    pub(crate) fn kill(&self) {
        if !self.is_version_2 {
            let _ = fs::write(self.dir.join("pids.max"), "0"); // missing without the pids controller
        } else if fs::write(self.dir.join("cgroup.kill"), "1").is_ok() {
            return;
        }
        pids_in(self.dir.clone()).into_iter().for_each(kill);
    }

    /// Kills all processes, and waits until they have exited.
    ///
    /// # Errors
    /// Returns an error if a process does not exit within `timeout`.
    pub(crate) fn kill_all(&self, timeout: Duration) -> io::Result<()> {
        let deadline = Instant::now() + timeout;
        while !pids_in(self.dir.clone()).is_empty() {
            if Instant::now() >= deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "an executed process did not exit after SIGKILL"));
            }
            self.kill();
            std::thread::sleep(Duration::from_millis(1)); // there is no notification, so this polls
        }
        Ok(())
    }

    /// Moves the processes into the container's cgroup, and removes this cgroup.
    pub(crate) fn release(&self) {
        let deadline = Instant::now() + EXIT_TIMEOUT;
        let procs = self.container.join("cgroup.procs");
        while fs::remove_dir(&self.dir).is_err_and(|error| error.kind() != io::ErrorKind::NotFound) {
            if Instant::now() >= deadline {
                return; // the drop kills the processes
            }
            let left = kernel_file::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
            for pid in left.lines() {
                let _ = fs::write(&procs, pid); // the process may have exited
            }
        }
    }
}

impl Drop for ExecCgroup {
    fn drop(&mut self) {
        let _ = self.kill_all(self.timeout); // remaining processes are killed with the container
        let _ = remove_dir(&self.dir, Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exec_cgroups_are_in_one_hierarchy() {
        let dir = tempfile::tempdir().unwrap();
        let mounts =
            |names: &[&str]| Hierarchies::at(&names.iter().map(|name| dir.path().join(name)).collect::<Vec<_>>());
        let place = |hierarchies: &Hierarchies| {
            let cgroup = hierarchies.exec_cgroup(Path::new("e/c"), 7, Duration::ZERO);
            cgroup.dir.strip_prefix(dir.path()).unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(place(&mounts(&["memory", "cpu", "pids"])), "pids/e/c/exec-7");
        assert_eq!(place(&mounts(&["memory", "cpu"])), "cpu/e/c/exec-7");
        assert_eq!(place(&mounts(&["memory"])), "memory/e/c/exec-7");
        let v2 = Hierarchies::V2 { mount: dir.path().join("v2") };
        assert_eq!(place(&v2), "v2/e/c/exec-7");
        fs::create_dir_all(dir.path().join("v2/e/c/rest")).unwrap();
        assert_eq!(place(&v2), "v2/e/c/rest/exec-7");
        assert_eq!(v2.make_exec(Path::new("e/missing"), 7).unwrap_err().kind(), io::ErrorKind::NotFound);
        let made = v2.make_exec(Path::new("e/c"), 7).unwrap();
        assert!(dir.path().join("v2/e/c/rest/exec-7").exists());
        drop(made);
        assert!(!dir.path().join("v2/e/c/rest/exec-7").exists());
    }
}
