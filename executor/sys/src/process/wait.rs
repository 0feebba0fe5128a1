//! Waits for the exit of processes and reaps them. The waiting process can be PID 1 of a pid namespace.

use std::fmt;
use std::io;

use executor_core::record::Exit;
use nix::sys::signal::SigSet;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;

use super::pidfd::pidfd;
use crate::ready::is_readable;

/// Exit status of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildExit {
    Code(i32),
    /// Number of the signal that terminated the child.
    Signal(i32),
}

impl fmt::Display for ChildExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "status {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

impl From<ChildExit> for Exit {
    fn from(ended: ChildExit) -> Self {
        match ended {
            ChildExit::Code(code) => Self::Code(code),
            ChildExit::Signal(signal) => Self::Signal(signal),
        }
    }
}

/// Waits for a child to exit and reaps it.
///
/// # Errors
/// Returns an error if the process is not a child of this process.
pub fn wait_for(pid: i32) -> io::Result<ChildExit> {
    loop {
        match waitpid(Pid::from_raw(pid), None) {
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
            Ok(status) => {
                if let Some((_, ended)) = ended(status) {
                    return Ok(ended);
                }
            }
        }
    }
}

/// Returns true if a child has exited. Does not reap it.
///
/// # Errors
/// Returns an error if the process is not a child of this process.
pub fn has_ended(pid: i32) -> io::Result<bool> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    Ok(waitid(Id::Pid(Pid::from_raw(pid)), flags)? != WaitStatus::StillAlive)
}

/// Returns true if a process exists and has not exited. The process need not be a child.
///
/// # Errors
/// Returns an error if descriptors run out.
pub fn is_alive(pid: i32) -> io::Result<bool> {
    let pidfd = match pidfd(pid) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(false),
        pidfd => pidfd?,
    };
    Ok(!is_readable(&pidfd))
}

/// Reaps one exited child, if there is one. If `kept` returns true for it, the child is not reaped, and no other child
/// is checked. Returns `None` if no child was reaped.
///
/// # Errors
/// Returns the kernel's error if a system call fails, which is not expected.
pub fn reap_one(kept: impl Fn(i32) -> bool) -> io::Result<Option<(i32, ChildExit)>> {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let pid = match waitid(Id::All, look) {
        Ok(WaitStatus::StillAlive) | Err(nix::errno::Errno::ECHILD) => return Ok(None),
        Ok(status) => status.pid(),
        Err(error) => return Err(error.into()),
    };
    match pid {
        Some(pid) if kept(pid.as_raw()) => Ok(None),
        Some(pid) => Ok(ended(waitpid(pid, Some(WaitPidFlag::WNOHANG))?)),
        None => Ok(None),
    }
}

fn ended(status: WaitStatus) -> Option<(i32, ChildExit)> {
    match status {
        WaitStatus::Exited(pid, code) => Some((pid.as_raw(), ChildExit::Code(code))),
        WaitStatus::Signaled(pid, signal, _) => Some((pid.as_raw(), ChildExit::Signal(signal as i32))),
        _ => None,
    }
}

/// Runs as PID 1 of a pid namespace: forwards every signal to `child` and reaps processes until `child` has exited.
/// Signals must be blocked ([`hold_signals`](crate::process::signals::hold_signals)) before the child is created.
///
/// # Errors
/// Returns an error if a required system call is not allowed.
pub fn serve_as_init(child: i32) -> io::Result<ChildExit> {
    serve(Some(child))
}

/// Runs as PID 1 of a pid namespace that has no program: reaps processes until it is killed. Signals must be blocked
/// ([`hold_signals`](crate::process::signals::hold_signals)).
///
/// # Errors
/// Returns the same errors as [`serve_as_init`].
pub fn serve_as_reaper() -> io::Result<ChildExit> {
    serve(None)
}

fn serve(child: Option<i32>) -> io::Result<ChildExit> {
    let all = SigSet::all();
    loop {
        while let Some((pid, ended)) = reap_one(|_| false)? {
            if Some(pid) == child {
                return Ok(ended);
            }
        }
        // SAFETY: the set is live, and the null pointer requests no siginfo.
        let signal = unsafe { libc::sigwaitinfo(std::ptr::from_ref(all.as_ref()), std::ptr::null_mut()) };
        match signal {
            -1 => match io::Error::last_os_error() {
                interrupted if interrupted.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
            libc::SIGCHLD => {}
            signal => {
                // SAFETY: a plain system call on integers. The child has not been reaped, so its pid cannot have been
                // reused. If the child has exited, the next wait reports the exit.
                let _ = child.map(|child| unsafe { libc::kill(child, signal) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;
    use crate::process::pidfd_signal;

    #[test]
    fn process_exit_is_visible_by_pidfd() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let fd = pidfd(child.id() as i32).unwrap();
        assert!(!has_ended(child.id() as i32).unwrap());
        pidfd_signal(fd.as_fd(), 9).unwrap();
        let mut poll = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut poll, None).unwrap(), 1);
        assert!(has_ended(child.id() as i32).unwrap());
        assert!(!is_alive(child.id() as i32).unwrap(), "a zombie is not alive");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(9));
        pidfd_signal(fd.as_fd(), 9).unwrap();
    }
}
