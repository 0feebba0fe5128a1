//! Waits for a test program, and ends it with all its processes if it does not exit in time.
//!
//! A program stays in the process group of `cargo xtask`, because it would not get the terminal's Ctrl-C in another one.
//! Its processes are found by their parents in /proc, so processes of its tests that have a group of their own are ended
//! as well.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Interval between two checks of a process.
const POLL: Duration = Duration::from_millis(50);
/// Time from SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(10);

/// Processes by their ids. A descriptor refers to its process even if the id is used again.
type Processes = BTreeMap<i32, OwnedFd>;

/// Waits for a child. Ends it and its descendants at the limit, and returns `None` then.
pub(super) fn wait_or_end(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + limit;
    while Instant::now() < until {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(POLL);
    }
    let mut processes = Processes::new();
    add_running(&mut processes, Pid::from_child(child).as_raw_nonzero().get());
    add_descendants(&mut processes)?;
    signal(&processes, Signal::TERM);
    let kill_at = Instant::now() + GRACE;
    while Instant::now() < kill_at && processes.values().any(is_running) {
        thread::sleep(POLL);
    }
    processes.retain(|_, process| is_running(process));
    add_descendants(&mut processes)?;
    signal(&processes, Signal::KILL);
    child.wait()?;
    Ok(None)
}

fn signal(processes: &Processes, signal: Signal) {
    for process in processes.values() {
        let _ = pidfd_send_signal(process, signal); // it may have exited
    }
}

/// Adds the running descendants of the processes.
fn add_descendants(processes: &mut Processes) -> io::Result<()> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default(); // empty if it has exited
        // The name, in parentheses, may contain anything; the state and the parent follow.
        let fields = stat.rsplit_once(')').map(|(_, fields)| fields.split_whitespace());
        if let Some(parent) = fields.and_then(|mut fields| fields.nth(1)?.parse().ok()) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut parents: Vec<i32> = processes.keys().copied().collect();
    while let Some(parent) = parents.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            add_running(processes, child);
            parents.push(child);
        }
    }
    Ok(())
}

fn add_running(processes: &mut Processes, pid: i32) {
    if let Some(Ok(process)) = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        processes.entry(pid).or_insert(process);
    }
}

fn is_running(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|exited| exited == 0)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn descendants_end_at_the_limit() {
        let mut command = Command::new("sh");
        let mut child = command.args(["-c", "sleep 1000 & (setsid sleep 1000; true) & wait"]).spawn().unwrap();
        let pid = Pid::from_child(&child).as_raw_nonzero().get();
        let mut processes = Processes::new();
        let deadline = Instant::now() + Duration::from_secs(20);
        while processes.len() < 4 && Instant::now() < deadline {
            add_running(&mut processes, pid);
            add_descendants(&mut processes).unwrap();
        }
        assert_eq!(wait_or_end(&mut child, Duration::ZERO).unwrap(), None);
        let left = || processes.values().any(is_running);
        while left() && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        assert!(processes.len() == 4 && !left(), "{processes:?}");
        let mut quick = Command::new("true").stdin(Stdio::null()).spawn().unwrap();
        assert!(wait_or_end(&mut quick, Duration::from_secs(60)).unwrap().unwrap().success());
    }
}
