//! Forks the calling process.

use std::io;

use executor_core::shortage;
use nix::unistd::ForkResult;

#[derive(Debug)]
pub enum Fork {
    /// Returned in the new process.
    Child,
    /// Returned in the caller; contains the child's pid.
    Parent(i32),
}

/// Forks the calling process.
///
/// # Errors
/// Returns an error if processes or memory run out, or if the caller has more than one thread. (In the child, only one
/// thread exists, and locks of the other threads would never be released.)
pub fn fork() -> io::Result<Fork> {
    OneThread::check()?;
    // SAFETY: there is one thread (checked above), so every lock and invariant in the copy is as that thread left it.
    Ok(match unsafe { nix::unistd::fork() }.map_err(|errno| shortage::from_fork(errno.into()))? {
        ForkResult::Child => Fork::Child,
        ForkResult::Parent { child } => Fork::Parent(child.as_raw()),
    })
}

/// Proof that the calling process has one thread: no lock in a copy of the process can belong to a thread that the copy
/// does not have. This crate creates no threads.
pub(crate) struct OneThread(());

impl OneThread {
    /// Counts threads in /proc. A process that enters a container must call this first, because afterwards /proc
    /// belongs to the container.
    pub(crate) fn check() -> io::Result<Self> {
        match threads()? {
            1 => Ok(Self(())),
            more => {
                Err(io::Error::other(format!("cannot fork: this process has {more} threads, but must have only one")))
            }
        }
    }
}

/// Forks with additional flags of clone(2): new namespaces for the child, or CLONE_PARENT.
///
/// # Errors
/// Returns the same errors as [`fork`], and an error if the kernel cannot create such a namespace.
pub(crate) fn clone(flags: i32, _: &OneThread) -> io::Result<Fork> {
    let flags = libc::c_long::from(flags | libc::SIGCHLD);
    // No library offers this call without a separate stack for the child.
    // SAFETY: the call shares no memory and passes no stack, so the child continues here with a copy of everything, as
    // after a fork. There is one thread (see `OneThread`), so every lock and invariant in the copy is as that thread
    // left it. glibc's fork additionally handles only atfork handlers and threads, and there are none.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        -1 => Err(shortage::from_fork(io::Error::last_os_error())),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(i32::try_from(pid).map_err(io::Error::other)?)),
    }
}

/// Returns the number of threads of this process.
pub(crate) fn threads() -> io::Result<usize> {
    // The link count of the directory is the number of threads plus two, so its entries need not be read.
    use std::os::unix::fs::MetadataExt;
    Ok((std::fs::metadata("/proc/self/task")?.nlink() as usize).saturating_sub(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If a process has several threads, a fork fails, because the copy could have locks that are never released.
    #[test]
    fn a_threaded_process_does_not_fork() {
        let (stop, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || wait.recv());
        assert!(fork().is_err());
        drop(stop);
        let _ = thread.join();
    }
}
