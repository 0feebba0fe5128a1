//! Namespaces of other processes.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use nix::sched::{CloneFlags, setns};

use super::forbid_dumps;

/// Opens the mount namespace of a process. The namespace and its mounts exist as long as the descriptor is open, even
/// after the process exits. For use with [`enter_namespaces`].
///
/// # Errors
/// Fails if the process has exited or the caller lacks privilege.
pub fn mount_namespace(pid: i32) -> io::Result<OwnedFd> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    Ok(rustix::fs::open(format!("/proc/{pid}/ns/mnt"), flags, rustix::fs::Mode::empty())?)
}

/// Enters namespaces of the pidfd's process, or the mount namespace if the descriptor is one.
///
/// # Errors
/// Fails if the process has exited or the caller lacks privilege.
pub fn enter_namespaces(pidfd: BorrowedFd<'_>, mount: bool, network: bool) -> io::Result<()> {
    let mut namespaces = CloneFlags::empty();
    namespaces.set(CloneFlags::CLONE_NEWNS, mount);
    namespaces.set(CloneFlags::CLONE_NEWNET, network);
    Ok(setns(pidfd, namespaces)?)
}

/// Runs `act` in the network namespace of the pidfd's process, then returns to the caller's own.
///
/// # Errors
/// As [`enter_namespaces`], or the error of `act`. If the caller could not return to its namespace, the error is not
/// one of `act`, and the caller must exit.
pub fn within_network<T>(pidfd: BorrowedFd<'_>, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let own = rustix::fs::open("/proc/thread-self/ns/net", flags, rustix::fs::Mode::empty())?;
    setns(pidfd, CloneFlags::CLONE_NEWNET)?;
    let done = act();
    setns(own, CloneFlags::CLONE_NEWNET)?;
    done
}

/// Enters the IPC namespace of the pidfd's process.
///
/// # Errors
/// See [`enter_namespaces`].
pub fn enter_ipc(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(setns(pidfd, CloneFlags::CLONE_NEWIPC)?)
}

/// Permanently enters a user namespace, given its descriptor or a pidfd of a process in it, and becomes its root: with
/// all capabilities over the namespace's resources and none over others.
///
/// # Errors
/// Fails if the caller lacks privilege, the namespace has no root, or it is the caller's own.
pub fn become_root_of(user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    setns(user_namespace, CloneFlags::CLONE_NEWUSER)?;
    become_root_within()
}

/// Becomes root of the user namespace that this process has entered.
pub(crate) fn become_root_within() -> io::Result<()> {
    nix::unistd::setgroups(&[])?;
    let (user, group) = (nix::unistd::Uid::from_raw(0), nix::unistd::Gid::from_raw(0));
    nix::unistd::setresgid(group, group, group)?;
    nix::unistd::setresuid(user, user, user)?;
    // The change of user made this process inspectable by other processes of that user.
    forbid_dumps()
}
