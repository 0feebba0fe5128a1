//! Opens and enters namespaces of other processes.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use nix::sched::{CloneFlags, setns};

use super::{forbid_dumps, require_restored};

/// Opens the mount namespace of a process, for [`enter_namespaces`]. The namespace and its mounts exist as long as the
/// descriptor is open, even after the process has exited.
///
/// # Errors
/// Returns an error if the process has exited or the caller lacks privilege.
pub fn mount_namespace(pid: i32) -> io::Result<OwnedFd> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    Ok(rustix::fs::open(format!("/proc/{pid}/ns/mnt"), flags, rustix::fs::Mode::empty())?)
}

/// Enters the mount namespace of the pidfd's process if `mount` is true, and its network namespace if `network` is
/// true. If the descriptor refers to a namespace instead of a process, enters that namespace.
///
/// # Errors
/// Returns an error if the process has exited or the caller lacks privilege.
pub fn enter_namespaces(pidfd: BorrowedFd<'_>, mount: bool, network: bool) -> io::Result<()> {
    let mut namespaces = CloneFlags::empty();
    namespaces.set(CloneFlags::CLONE_NEWNS, mount);
    namespaces.set(CloneFlags::CLONE_NEWNET, network);
    Ok(setns(pidfd, namespaces)?)
}

/// Runs `act` in the network namespace of the pidfd's process, then returns to the caller's network namespace. A process
/// that cannot return exits with status 1.
///
/// # Errors
/// Returns the errors of [`enter_namespaces`] and of `act`.
pub fn within_network<T>(pidfd: BorrowedFd<'_>, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let own = rustix::fs::open("/proc/thread-self/ns/net", flags, rustix::fs::Mode::empty())?;
    setns(pidfd, CloneFlags::CLONE_NEWNET)?;
    let done = act();
    require_restored("network namespace", setns(own, CloneFlags::CLONE_NEWNET));
    done
}

/// Runs `act` in another mount namespace, then returns to the caller's mount namespace. The working directory is then
/// `/`. The process must have one thread. A process that cannot return exits with status 1.
///
/// # Errors
/// Returns an error if the caller lacks privilege. `act` is then not run.
pub fn within_mounts<T>(mounts: BorrowedFd<'_>, act: impl FnOnce() -> T) -> io::Result<T> {
    let own = mount_namespace(std::process::id() as i32)?;
    setns(mounts, CloneFlags::CLONE_NEWNS)?;
    let done = act();
    require_restored("mount namespace", setns(&own, CloneFlags::CLONE_NEWNS));
    Ok(done)
}

/// Enters the IPC namespace of the pidfd's process.
///
/// # Errors
/// Returns the same errors as [`enter_namespaces`].
pub fn enter_ipc(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(setns(pidfd, CloneFlags::CLONE_NEWIPC)?)
}

/// Permanently enters a user namespace, given its descriptor or a pidfd of a process in it, and becomes its root. The
/// process then has all capabilities over the resources of that namespace, and no capability over other resources.
///
/// # Errors
/// Returns an error if the caller lacks privilege, the namespace has no root, or the caller is already in it.
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
    // After the change of user, other processes of that user could inspect this process.
    forbid_dumps()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    /// A process that cannot leave another network namespace exits. As a control, a process that can leave the
    /// namespace continues.
    #[test]
    #[ignore = "needs root"]
    fn process_in_other_network_exits() {
        const ALONE: &str = "EXECUTOR_SYS_TEST_STAYS_IN_NETWORK";
        const NAME: &str = "process::namespaces::tests::process_in_other_network_exits";
        let Some(stays) = std::env::var_os(ALONE) else {
            let run = |stays: &str| {
                let mut again = std::process::Command::new("/proc/self/exe");
                again.args(["--include-ignored", "--exact", NAME]).env(ALONE, stays).output().unwrap()
            };
            let (control, exited) = (run("no"), run("yes"));
            assert_eq!(control.status.code(), Some(0), "control failed: {control:?}");
            assert_eq!(exited.status.code(), Some(1), "{exited:?}");
            assert!(String::from_utf8_lossy(&exited.stderr).contains("cannot restore the network"), "{exited:?}");
            return;
        };
        let own = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        nix::sched::unshare(CloneFlags::CLONE_NEWNET).unwrap();
        within_network(own.as_fd(), || {
            if stays == "yes" {
                crate::privileges::keep_capabilities(&Default::default(), &Default::default())?;
            }
            Ok(())
        })
        .unwrap();
    }
}
