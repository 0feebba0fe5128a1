//! Runs `git` without configuration and with limits on memory, file sizes and time.
//!
//! A shell sets the limits and then executes `git`. Each `git` process has its own process group, because `git fetch`
//! starts helper processes. The whole group is killed when `git` exits, on timeout, and when the handle is dropped.

use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use executor_core::text::printable;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::super::{MEMORY_MAX, SourceError};

/// Shell script that limits file sizes (in blocks of 512 bytes) and memory (in KiB), and executes git.
const LIMITED: &str = r#"ulimit -c 0 && ulimit -f "$1" && ulimit -v "$2" && shift 2 && exec git "$@""#;
/// Maximum address space of a git process, in KiB. git maps packs in windows, and does not load blobs larger than
/// `core.bigFileThreshold` into memory.
const ADDRESS_SPACE_KIB: u64 = 2 << 20;
/// Maximum size of git's output that is kept, in bytes.
const SAID_MAX: u64 = 64 << 10;

/// Limits of a git process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Maximum size of a file that git writes, in bytes.
    pub(super) file_bytes: u64,
    /// Time after which git is killed.
    pub(super) time: Duration,
}

impl Limits {
    /// Limits of a fetch. The pack contains the whole commit, even if the source is only one directory.
    pub(super) const FETCH: Self = Self { file_bytes: 2 * MEMORY_MAX, time: Duration::from_secs(600) };
    /// Limits of commands that read objects.
    pub(super) const READ: Self = Self { file_bytes: 1 << 20, time: Duration::from_secs(600) };
}

/// Builds a command for a repository, without the user's or the system's configuration.
pub(super) fn git(directory: &Path, limits: &Limits) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", LIMITED, "git", &(limits.file_bytes / 512).to_string(), &ADDRESS_SPACE_KIB.to_string()]);
    command.env_clear().stdin(Stdio::null());
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    for (name, value) in [
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_ASKPASS", "/bin/false"),
        ("GIT_ALLOW_PROTOCOL", "https"),
        ("GIT_NO_REPLACE_OBJECTS", "1"),
        ("GIT_NO_LAZY_FETCH", "1"),
        ("GIT_ATTR_NOSYSTEM", "1"),
        ("GIT_OPTIONAL_LOCKS", "0"),
        ("LC_ALL", "C"),
    ] {
        command.env(name, value);
    }
    for setting in [
        // Repositories of other users are accepted: nothing in them is executed.
        "safe.directory=*",
        "core.hooksPath=/dev/null",
        "core.fsmonitor=false",
        "core.bigFileThreshold=1m",
        "core.packedGitWindowSize=16m",
        "core.packedGitLimit=256m",
        "core.deltaBaseCacheLimit=16m",
        "pack.threads=1",
        "gc.auto=0",
    ] {
        command.args(["-c", setting]);
    }
    command.arg("--git-dir").arg(directory);
    command.process_group(0);
    command
}

/// Runs a command until it exits and returns at most [`SAID_MAX`] bytes of its output.
pub(super) fn run(mut command: Command, limits: &Limits, doing: &str) -> Result<Vec<u8>, SourceError> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::spawn(command, limits)?;
    let mut said = Vec::new();
    if let Some(stdout) = running.child.stdout.take() {
        stdout.take(SAID_MAX).read_to_end(&mut said).map_err(|error| failed(&error))?;
    }
    running.finish(doing)?;
    Ok(said)
}

fn failed(error: &io::Error) -> SourceError {
    SourceError::Git(format!("cannot run git: {error}"))
}

/// A git process.
pub(super) struct Running {
    pub(super) child: Child,
    group: Pid,
    time: Duration,
    /// Thread that kills the process group when the process exits or on timeout. Returns true on timeout.
    watchdog: Option<JoinHandle<bool>>,
    /// Thread that returns the end of the process's error output.
    errors: Option<JoinHandle<Vec<u8>>>,
}

impl Running {
    pub(super) fn spawn(mut command: Command, limits: &Limits) -> Result<Self, SourceError> {
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        let errors = child.stderr.take().map(|stderr| std::thread::spawn(|| read_tail(stderr)));
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let group = group.ok_or_else(|| SourceError::Git("git has no process id".to_owned()))?;
        let mut running = Self { child, group, time: limits.time, watchdog: None, errors };
        let pidfd = pidfd_open(group, PidfdFlags::empty()).map_err(|error| failed(&error.into()))?;
        let ends = Instant::now() + limits.time;
        running.watchdog = Some(std::thread::spawn(move || {
            let ended = loop {
                let left = ends.saturating_duration_since(Instant::now());
                let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
                match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left)) {
                    Ok(0) => break false,
                    Ok(_) => break true,
                    Err(rustix::io::Errno::INTR) => {}
                    Err(_) => break false,
                }
            };
            // The process has not been reaped yet, so the group id is still valid.
            let _ = kill_process_group(group, Signal::KILL);
            !ended
        }));
        Ok(running)
    }

    /// Waits for the process.
    ///
    /// # Errors
    /// Returns git's message if the process failed, or the time limit on timeout.
    pub(super) fn finish(mut self, doing: &str) -> Result<(), SourceError> {
        let (status, late) = self.end().map_err(|error| failed(&error))?;
        if late {
            return Err(SourceError::Git(format!("git did not {doing} within {} s", self.time.as_secs())));
        }
        if status.success() {
            return Ok(());
        }
        Err(SourceError::Git(format!("git cannot {doing}: {}", self.reason(status))))
    }

    /// Returns the last line of git's error output; if there is none, the exit status.
    fn reason(&mut self, status: ExitStatus) -> String {
        let said = self.errors.take().and_then(|errors| errors.join().ok()).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let line = said.lines().last().unwrap_or_default().trim().chars().take(300).collect::<String>();
        if line.is_empty() { status.to_string() } else { printable(&line, usize::MAX) }
    }

    fn end(&mut self) -> io::Result<(ExitStatus, bool)> {
        drop(self.child.stdin.take());
        let late = self.watchdog.take().is_some_and(|watchdog| watchdog.join().unwrap_or(true));
        Ok((self.child.wait()?, late))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process_group(self.group, Signal::KILL);
        }
        let _ = self.end();
        if let Some(errors) = self.errors.take() {
            let _ = errors.join();
        }
    }
}

/// Reads to the end and returns at most the last [`SAID_MAX`] bytes.
fn read_tail(mut stderr: ChildStderr) -> Vec<u8> {
    let (mut said, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = stderr.read(&mut piece) {
        said.extend_from_slice(&piece[..count]);
        let beyond = said.len().saturating_sub(SAID_MAX as usize);
        said.drain(..beyond);
    }
    said
}
