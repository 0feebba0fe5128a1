//! Stops and continues all processes of a cgroup, by signals.
//!
//! The freezer is not used: on version 1 a frozen process exits on SIGKILL only after a thaw, and the wipe of secrets
//! must never wait for a thaw ([ADR 50](../../../../docs/adr/0050-a-pause-stops-processes-by-signals.md)). A process
//! cannot block SIGSTOP, and cannot fork while SIGSTOP is pending.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use executor_sys::kernel_file;

use super::{Hierarchies, signal};

/// Bit of SIGSTOP in the masks of /proc/PID/status.
const SIGSTOP_BIT: u64 = 1 << (libc::SIGSTOP - 1);

/// Result of stopping the processes of a cgroup.
#[derive(Debug)]
pub(crate) struct StoppedProcesses {
    /// Processes that job control or a debugger had stopped before. These processes are not continued.
    before: BTreeSet<i32>,
}

impl Hierarchies {
    /// Stops all processes of a cgroup and its descendants, including processes that are created during this call.
    ///
    /// # Errors
    /// Returns an error if a process does not stop within `timeout`. In this case, the stopped processes are continued.
    pub(crate) fn stop_processes(&self, path: &Path, timeout: Duration) -> io::Result<StoppedProcesses> {
        let deadline = Instant::now() + timeout;
        let mut stopped = StoppedProcesses { before: BTreeSet::new() };
        let mut signaled = BTreeSet::new();
        loop {
            let mut rests = true;
            for pid in self.pids(path) {
                let status = status(pid);
                if signaled.insert(pid) {
                    stopped.before.extend(is_stopped(&status).then_some(pid));
                    signal(pid, libc::SIGSTOP);
                    rests = false;
                } else {
                    rests &= is_stopped(&status) || has_pending_stop(&status);
                }
            }
            if rests {
                return Ok(stopped);
            }
            if Instant::now() >= deadline {
                self.continue_processes(path, &stopped);
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the container's processes did not stop in time"));
            }
            std::thread::sleep(Duration::from_millis(1)); // a process does not report that it has stopped
        }
    }

    /// Continues the stopped processes, the highest pid first, so that a shell finds its children running.
    pub(crate) fn continue_processes(&self, path: &Path, stopped: &StoppedProcesses) {
        let mut pids = self.pids(path);
        pids.sort_unstable_by(|one, other| other.cmp(one));
        pids.into_iter().filter(|pid| !stopped.before.contains(pid)).for_each(|pid| signal(pid, libc::SIGCONT));
    }
}

/// Returns the content of a process's status file. Returns an empty string if the process has exited.
fn status(pid: i32) -> String {
    kernel_file::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()
}

fn value<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"))
}

/// Returns true if a process executes no code: it is stopped or has exited.
fn is_stopped(status: &str) -> bool {
    value(status, "State").is_none_or(|state| state.starts_with(['T', 't', 'Z', 'X']))
}

/// Returns true if a process will stop before it executes user code: SIGSTOP is pending while the process waits in the
/// kernel, for example for a child of vfork.
fn has_pending_stop(status: &str) -> bool {
    ["SigPnd", "ShdPnd"].into_iter().any(|name| {
        let mask = value(status, name).and_then(|mask| u64::from_str_radix(mask, 16).ok());
        mask.is_some_and(|mask| mask & SIGSTOP_BIT != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_shows_stopped_and_pending_processes() {
        let of = |state: &str, pending: &str| {
            format!("Name:\tx\nState:\t{state} (x)\nSigPnd:\t0000000000000000\nShdPnd:\t{pending}\n")
        };
        let none = "0000000000000000";
        for (state, stopped) in [("R", false), ("S", false), ("D", false), ("T", true), ("t", true), ("Z", true)] {
            assert_eq!(is_stopped(&of(state, none)), stopped, "{state}");
        }
        assert!(is_stopped(""), "the process has exited");
        assert!(has_pending_stop(&of("D", "0000000000040000")));
        assert!(!has_pending_stop(&of("D", "0000000000020000")), "SIGCONT is not SIGSTOP");
    }
}
