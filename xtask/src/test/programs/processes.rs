//! Waits for a test program, and kills it and its descendants if it does not exit in time.
//!
//! A program stays in the process group of `cargo xtask`, because the terminal sends Ctrl-C only to this group. Its
//! descendants are found by the parent ids in /proc, so processes in other process groups are killed too.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};
use std::{fs, io};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Time from SIGTERM to SIGKILL.
const GRACE_PERIOD: Duration = Duration::from_secs(10);

/// Processes by pid. A descriptor refers to its process even if the pid is reused.
type Processes = BTreeMap<i32, OwnedFd>;

/// Waits for a child. If it still runs at the limit, kills it and its descendants and returns `None`.
pub(super) fn wait_or_end(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let pid = Pid::from_child(child);
    let own = pidfd_open(pid, PidfdFlags::empty())?;
    if exits_until(&own, Instant::now() + limit) {
        return child.wait().map(Some);
    }
    let mut processes = Processes::from([(pid.as_raw_nonzero().get(), own)]);
    add_descendants(&mut processes)?;
    signal(&processes, Signal::TERM);
    let kill_at = Instant::now() + GRACE_PERIOD;
    processes.retain(|_, process| !exits_until(process, kill_at));
    add_descendants(&mut processes)?;
    signal(&processes, Signal::KILL);
    child.wait()?;
    Ok(None)
}

fn signal(processes: &Processes, signal: Signal) {
    for process in processes.values() {
        let _ = pidfd_send_signal(process, signal); // the process may have exited
    }
}

/// Adds the running descendants of the processes.
fn add_descendants(processes: &mut Processes) -> io::Result<()> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default(); // empty if it has exited
        // The name is in parentheses and may contain any character. State and parent follow.
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

/// Waits for the exit of a process. Returns false if it still runs at `until`.
fn exits_until(process: &OwnedFd, until: Instant) -> bool {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            exited => return exited.is_ok_and(|count| count > 0),
        }
    }
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
        assert!(
            processes.len() == 4 && processes.values().all(|process| exits_until(process, deadline)),
            "{processes:?}"
        );
        let mut quick = Command::new("true").stdin(Stdio::null()).spawn().unwrap();
        assert!(wait_or_end(&mut quick, Duration::from_secs(60)).unwrap().unwrap().success());
    }
}
