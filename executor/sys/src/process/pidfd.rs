//! Opens and uses descriptors of processes (pidfd).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::process::PidfdFlags;

/// Reserves one descriptor until the returned descriptor is dropped. Call this before a fork, so that [`pidfd`] for the
/// child cannot fail for lack of descriptors.
///
/// # Errors
/// Returns an error if the process has too many open descriptors.
pub fn room_for_one(any: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    any.try_clone_to_owned()
}

/// Returns a pidfd. The pidfd becomes readable when the process exits.
///
/// # Errors
/// Returns an error if no process has this pid.
pub fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// Returns the pid of the pidfd's process.
///
/// # Errors
/// Returns `NotFound` if the process has exited, and `InvalidInput` if the descriptor is not a pidfd.
pub fn pid_of(pidfd: BorrowedFd<'_>) -> io::Result<i32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse::<i32>().ok());
    match pid {
        Some(pid) if pid > 0 => Ok(pid),
        Some(_) => Err(io::ErrorKind::NotFound.into()),
        None => Err(io::Error::new(io::ErrorKind::InvalidInput, "the descriptor is not a pidfd")),
    }
}

/// Sends a signal to the pidfd's process. Does nothing if the process has exited.
///
/// # Errors
/// Returns an error if the number is not a signal or the caller has no permission.
pub fn pidfd_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: a plain system call on integers. The null siginfo makes the kernel fill in the same values as for kill.
    let result = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, std::ptr::null::<libc::siginfo_t>(), 0)
    };
    match io::Error::last_os_error() {
        _ if result == 0 => Ok(()),
        error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        error => Err(error),
    }
}

/// Sends SIGKILL to a process whose pid cannot have been reused: a child that has not been reaped, or a process that
/// was identified just before. Does nothing if the process has exited.
pub fn kill(pid: i32) {
    if let Ok(pidfd) = pidfd(pid) {
        let _ = pidfd_signal(pidfd.as_fd(), libc::SIGKILL);
    }
}
