//! Opens and uses descriptors of processes (pidfd).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
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
    send(pidfd, signal, 0)
}

/// Sends SIGKILL to all processes in the process group of `leader`, whose pid is `pid`. Does nothing if the group is
/// empty. Before Linux 6.9, the group is found by its number, which may belong to another group if the leader was
/// reaped.
///
/// # Errors
/// Returns an error if the caller has no permission.
pub fn kill_group(leader: BorrowedFd<'_>, pid: i32) -> io::Result<()> {
    const PIDFD_SIGNAL_PROCESS_GROUP: u32 = 1 << 2; // not in libc
    match send(leader, libc::SIGKILL, PIDFD_SIGNAL_PROCESS_GROUP) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            match nix::sys::signal::killpg(Pid::from_raw(pid), Signal::SIGKILL) {
                Err(Errno::ESRCH) => Ok(()),
                sent => Ok(sent?),
            }
        }
        sent => sent,
    }
}

fn send(pidfd: BorrowedFd<'_>, signal: i32, flags: u32) -> io::Result<()> {
    let info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a plain system call on integers. The null siginfo makes the kernel fill in the same values as for kill.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, info, flags) };
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

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    /// The group of a reaped leader is killed as long as a process is in the group.
    #[test]
    fn group_of_reaped_leader_is_killed() {
        let mut leader = Command::new("sh")
            .args(["-c", "sleep 1000 >&2 & echo $!"])
            .process_group(0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let group = leader.id() as i32;
        let by_pidfd = pidfd(group).unwrap();
        let mut line = String::new();
        BufReader::new(leader.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let member = pidfd(line.trim().parse().unwrap()).unwrap();
        leader.wait().unwrap();
        pidfd_signal(by_pidfd.as_fd(), libc::SIGKILL).unwrap();
        let mut ended = [rustix::event::PollFd::new(&member, rustix::event::PollFlags::IN)];
        let short = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let count = rustix::event::poll(&mut ended, Some(&short)).unwrap();
        assert_eq!(count, 0, "control failed: a signal to the leader ended the group");
        kill_group(by_pidfd.as_fd(), group).unwrap();
        assert_eq!(rustix::event::poll(&mut ended, None).unwrap(), 1);
        kill_group(by_pidfd.as_fd(), group).unwrap();
    }
}
