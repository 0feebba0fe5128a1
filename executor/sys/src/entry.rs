//! The way into a container that runs: its namespaces, its user, and a process in it.
//!
//! A process of the executor's becomes what the container's own processes are *before* it can be seen in the container: it enters
//! every namespace, gives up all that they do not have, and only then makes the process that is in the container's pid
//! namespace, too. What is seen there has nothing that is worth reaching (CVE-2016-9962).

use std::io;
use std::os::fd::BorrowedFd;

use nix::sched::{CloneFlags, setns};

use crate::privileges::{self, Credentials};
use crate::process::{self, Fork, OneThread};

/// The name of a namespace below /proc/PID/ns, and its flag.
const KINDS: [(&str, CloneFlags); 7] = [
    ("user", CloneFlags::CLONE_NEWUSER),
    ("mnt", CloneFlags::CLONE_NEWNS),
    ("pid", CloneFlags::CLONE_NEWPID),
    ("net", CloneFlags::CLONE_NEWNET),
    ("ipc", CloneFlags::CLONE_NEWIPC),
    ("uts", CloneFlags::CLONE_NEWUTS),
    ("cgroup", CloneFlags::CLONE_NEWCGROUP),
];

/// Namespaces of a process that are not the caller's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespaces(CloneFlags);

impl Namespaces {
    /// Compares them. The caller makes sure that the pid is still the same process' afterwards.
    ///
    /// # Errors
    /// No such process; no privilege.
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

    /// A user namespace is among them.
    pub fn has_user(self) -> bool {
        self.0.contains(CloneFlags::CLONE_NEWUSER)
    }
}

/// Enters namespaces of the process of a descriptor, does there what takes privilege, takes these credentials for good, and
/// makes a process that is in the pid namespace as well: a child of the caller's own parent, so that the caller can end.
///
/// # Errors
/// The process has ended; a limit of the container's on processes; something is left that should not be. The caller must
/// end then: it may be within already.
pub fn enter(
    pidfd: BorrowedFd<'_>,
    namespaces: Namespaces,
    credentials: &Credentials,
    within: impl FnOnce() -> io::Result<()>,
) -> io::Result<Fork> {
    let one_thread = OneThread::check()?; // first: /proc is the container's afterwards
    setns(pidfd, namespaces.0)?;
    within()?;
    privileges::become_within(credentials)?;
    process::clone(libc::CLONE_PARENT, &one_thread)
}

/// Takes a mount namespace of its own for the calling process, which begins as a copy of the one that it is in: what is mounted
/// from now on is seen by this process and its children alone. For a process that has entered a container; it becomes root
/// there, so that what it makes belongs to somebody whom the container knows.
///
/// # Errors
/// No privilege.
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
