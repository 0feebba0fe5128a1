//! Kills processes of the executor whose shim has exited, before their resources are removed.
//!
//! A shim clones helper processes: libcontainer's process, which creates the cgroups and clones init; init itself,
//! until it executes its program; and the helper that writes secret files. After the shim's exit these processes may
//! continue to run, and could recreate removed files or write wiped files. No record lists these processes, and they
//! join their container's cgroup only later. The processes are identified by their program, the sealed memory file, and
//! by the run directory in their command line.

use std::collections::BTreeSet;
use std::ffi::{CStr, OsStr};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use executor_sys::kernel_file;
use executor_sys::process;
use executor_sys::ready::readable_by;

use crate::cli::RUN_DIR_DEFAULT;
use crate::log::{self, Level};
use crate::memfd_exec;

/// Time limit for the kernel to terminate a killed process.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum depth of processes below a shim: the step starter, the process that enters the container, and one more
/// process.
const DEPTH_MAX: usize = 3;
/// Maximum number of rounds. A killed process cannot clone, and a process that was cloned before is found in the next
/// round.
const ROUNDS_MAX: usize = 100;

/// Kills every process of the executor for `run_dir`, except this process, the shims in `living` and their descendants.
pub(crate) fn kill_all(run_dir: &Path, living: &BTreeSet<i32>) {
    for _ in 0..ROUNDS_MAX {
        let orphans = find(run_dir, living);
        if orphans.is_empty() {
            return;
        }
        for pid in orphans {
            if let Err(error) = kill_one(pid, run_dir) {
                log::line(Level::Error, "", format_args!("orphaned process {pid} was not killed: {error}"));
            }
        }
    }
    log::line(Level::Error, "", "orphaned processes remain after many rounds of SIGKILL");
}

/// Returns the pids of this process's children, including zombies.
pub(crate) fn children() -> Vec<i32> {
    let children = kernel_file::read_to_string("/proc/thread-self/children").unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Reaps children of this process that have exited, except children in `kept`.
pub(crate) fn reap_exited(kept: &BTreeSet<i32>) {
    for pid in children().into_iter().filter(|pid| !kept.contains(pid)) {
        if process::has_ended(pid).unwrap_or(false) {
            let _ = process::wait_for(pid);
        }
    }
}

/// Returns true if there is a process with this name for `run_dir` that is neither in `known` nor a descendant of a
/// process in `known`.
pub(crate) fn has_unknown(name: &CStr, run_dir: &Path, known: &BTreeSet<i32>) -> bool {
    let is_named = |pid: &i32| {
        kernel_file::read(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_ascii_end() == name.to_bytes())
    };
    find(run_dir, known).iter().any(is_named)
}

fn find(run_dir: &Path, living: &BTreeSet<i32>) -> Vec<i32> {
    let own = std::process::id() as i32;
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| *pid != own && !living.contains(pid) && is_ours(*pid, run_dir))
        .filter(|pid| ancestors(*pid).is_some_and(|ancestors| ancestors.iter().all(|above| !living.contains(above))))
        .collect()
}

/// Returns at most [`DEPTH_MAX`] ancestors of a process, nearest first; `None` if the parent of the process is unknown.
fn ancestors(pid: i32) -> Option<Vec<i32>> {
    let mut above = vec![parent(pid)?];
    for _ in 1..DEPTH_MAX {
        above.extend(above.last().and_then(|pid| parent(*pid)));
    }
    Some(above)
}

/// Returns true if a process runs the launcher's program for the run directory. Returns false for a zombie, which has
/// no program, and for a launcher that is starting: it exits by itself if another launcher owns the run directory.
fn is_ours(pid: i32, run_dir: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == Path::new(memfd_exec::LINK))
        && kernel_file::read(format!("/proc/{pid}/comm")).is_ok_and(|name| !is_starting(name.trim_ascii_end()))
        && kernel_file::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| run_dir_of(&line).is_some_and(|dir| dir == run_dir))
}

/// Returns true if a thread name is the name of a starting launcher. Until a launcher sets its name, the kernel names
/// the thread after the memory file or, before Linux 6.14, after the descriptor number.
fn is_starting(name: &[u8]) -> bool {
    name == memfd_exec::STARTING.to_bytes() || name.starts_with(b"memfd:") || name.iter().all(u8::is_ascii_digit)
}

/// Returns the run directory in a command line.
fn run_dir_of(line: &[u8]) -> Option<PathBuf> {
    const NAME: &[u8] = b"--run-dir";
    let mut words = line.split(|byte| *byte == 0);
    let mut named = None;
    while let Some(word) = words.next() {
        match word.strip_prefix(NAME) {
            Some(b"") => named = words.next(),
            Some([b'=', value @ ..]) => named = Some(value),
            _ => {}
        }
    }
    std::path::absolute(named.map_or(Path::new(RUN_DIR_DEFAULT), |dir| Path::new(OsStr::from_bytes(dir)))).ok()
}

fn parent(pid: i32) -> Option<i32> {
    let stat = kernel_file::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()
}

fn kill_one(pid: i32, run_dir: &Path) -> io::Result<()> {
    let Ok(pidfd) = process::pidfd(pid) else { return Ok(()) }; // the process has exited
    if !is_ours(pid, run_dir) {
        return Ok(()); // the pid was reused, or the process now runs the container's program
    }
    process::pidfd_signal(pidfd.as_fd(), libc::SIGKILL)?;
    if !readable_by(&pidfd, Instant::now() + EXIT_TIMEOUT)? {
        return Err(io::ErrorKind::TimedOut.into());
    }
    log::line(Level::Info, "", format_args!("orphaned process {pid} was killed"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_dir_is_read_from_command_line() {
        let of = |line: &str| run_dir_of(line.replace(' ', "\0").as_bytes()).unwrap();
        assert_eq!(of("executor-launcher --run-dir /run/a --daemon-user 1"), Path::new("/run/a"));
        assert_eq!(of("executor-launcher --run-dir=/run/a"), Path::new("/run/a"));
        assert_eq!(of("executor-launcher"), Path::new("/run/executor"));
        assert_eq!(of("executor-launcher --run-directory /x"), Path::new("/run/executor"));
    }

    #[test]
    fn starting_launchers_are_recognized_by_name() {
        let starting = ["executor-start", "memfd:executor-", "4", "12"].map(|name| is_starting(name.as_bytes()));
        assert_eq!(starting, [true; 4]);
        for name in ["executor-launch", "executor-shim", "executor-steps", "youki:[1:INTER]", "init"] {
            assert!(!is_starting(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn process_of_another_program_is_ignored() {
        assert!(!is_ours(std::process::id() as i32, Path::new("/run/executor")));
        assert!(parent(std::process::id() as i32).is_some());
    }
}
