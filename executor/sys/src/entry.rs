//! Enters the namespaces of a running container, adopts a container user's credentials, and creates a process there.
//!
//! The executor's process adopts the container's restrictions *before* it becomes visible in the container: it enters
//! every namespace and drops every privilege that the container lacks. Only then does it create a process in the
//! container's pid namespace. Therefore, the visible process has no privilege or descriptor that the container could
//! misuse (CVE-2016-9962).

use std::io;
use std::os::fd::BorrowedFd;

use nix::sched::{CloneFlags, setns};

use crate::privileges::{self, Credentials};
use crate::process::{self, Fork, OneThread};

/// Name of each namespace in /proc/PID/ns, and its clone flag.
const KINDS: [(&str, CloneFlags); 7] = [
    ("user", CloneFlags::CLONE_NEWUSER),
    ("mnt", CloneFlags::CLONE_NEWNS),
    ("pid", CloneFlags::CLONE_NEWPID),
    ("net", CloneFlags::CLONE_NEWNET),
    ("ipc", CloneFlags::CLONE_NEWIPC),
    ("uts", CloneFlags::CLONE_NEWUTS),
    ("cgroup", CloneFlags::CLONE_NEWCGROUP),
];

/// The namespaces of a process that differ from the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespaces(CloneFlags);

impl Namespaces {
    /// Compares the namespaces of `pid` with the caller's. The caller must check afterwards that the pid was not
    /// reused.
    ///
    /// # Errors
    /// Returns an error if the process does not exist or the caller lacks privilege.
    pub fn other_than_own(pid: i32) -> io::Result<Self> {
        let mut flags = CloneFlags::empty();
        for (name, flag) in KINDS {
            let own = std::fs::read_link(format!("/proc/self/ns/{name}"))?;
            if std::fs::read_link(format!("/proc/{pid}/ns/{name}"))? != own {
                flags |= flag;
            }
        }
        Ok(Self(flags))
    }

    /// Returns true if the set has a user namespace.
    pub fn has_user(self) -> bool {
        self.0.contains(CloneFlags::CLONE_NEWUSER)
    }
}

/// Enters the namespaces of the pidfd's process, calls `within` for privileged steps, permanently switches to the
/// credentials, and creates a process that is also in the pid namespace. The new process is a child of the caller's
/// parent, so the caller can exit.
///
/// # Errors
/// Returns an error if the process has exited, the container's process limit is reached, or the caller still has a
/// privilege that it must not keep. The caller must then exit, because it may already be inside the container.
pub fn enter(
    pidfd: BorrowedFd<'_>,
    namespaces: Namespaces,
    credentials: &Credentials,
    within: impl FnOnce() -> io::Result<()>,
) -> io::Result<Fork> {
    let one_thread = OneThread::check()?; // first, because after setns /proc belongs to the container
    setns(pidfd, namespaces.0)?;
    within()?;
    privileges::drop_to_credentials(credentials)?;
    process::clone(libc::CLONE_PARENT, &one_thread)
}

/// Moves the calling process into a new mount namespace, a copy of the current namespace. Later mounts are visible only
/// to this process and its children. If `namespaces` has a user namespace, which the process must already have entered,
/// the process becomes root of that namespace. New files then have an owner that is mapped in the container.
///
/// # Errors
/// Returns an error if the caller lacks privilege.
pub fn separate_mounts(namespaces: Namespaces) -> io::Result<()> {
    nix::sched::unshare(CloneFlags::CLONE_NEWNS)?;
    let private = nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE;
    nix::mount::mount(None::<&str>, "/", None::<&str>, private, None::<&str>)?;
    if namespaces.has_user() {
        process::become_root_within()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_namespaces_are_no_others() {
        assert_eq!(Namespaces::other_than_own(std::process::id() as i32).unwrap(), Namespaces(CloneFlags::empty()));
    }

    #[test]
    #[ignore = "needs root"]
    fn namespaces_of_another_process_are_found() {
        let mut child = std::process::Command::new("unshare").args(["-n", "-i", "sleep", "1000"]).spawn().unwrap();
        let expected = Namespaces(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWIPC);
        while Namespaces::other_than_own(child.id() as i32).unwrap() != expected {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
