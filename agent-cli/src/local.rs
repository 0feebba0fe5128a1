//! `--local`: a private executord for one command.
//!
//! The private executord lives in a fresh temporary directory, is ready when its health service says so, and is taken
//! down at the end: SIGTERM, its exit, its directories gone. If this program dies first, executord notices by itself
//! (`--ephemeral`). It inherits next to nothing of this program's environment, where `@env:` secrets may lie, and runs
//! in a process group of its own, so that Ctrl-C at the terminal reaches this program alone, which decides what
//! follows.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::connect::Client;
use crate::executables;
use crate::failure::Failure;
use crate::text::plain;

/// Longest time until executord serves.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Longest time for executord to kill its containers and to exit.
const EXIT_WITHIN: Duration = Duration::from_secs(30);
/// Longest time for the launcher to remove the directories after executord has exited.
const CLEARED_WITHIN: Duration = Duration::from_secs(10);
/// The same after an executord that never served: it may not have come to start a launcher.
const CLEARED_UNSERVED_WITHIN: Duration = Duration::from_secs(1);
/// Between two looks at a condition that nothing announces.
const POLL: Duration = Duration::from_millis(5);
/// Lines of its log that an error shows.
const LAST_LINES: usize = 12;
/// Longest path of the directory: with a longer one the sockets of containers (`run/containers/UUID/shim.sock`) would
/// exceed the 107 bytes of a unix socket's path.
const HOME_MAX: usize = 45;
/// Bytes and files that executord, its launcher and a container need on a disk; below 4 MiB and 8 files executord takes none.
const ROOM: (u64, u64) = (64 << 20, 1000);
/// Variables of this program's environment that the daemon gets.
const INHERITED: [&str; 5] = ["PATH", "HOME", "TMPDIR", "RUST_LOG", "RUST_BACKTRACE"];

/// Errors of starting a private executord.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LocalError {
    #[error(
        "--local starts an executord, which needs root: run `sudo agent-cli --local ...`, or reach a running one \
         with --socket"
    )]
    NotRoot,
    #[error("--local finds no executord beside {} and none in PATH", .0.display())]
    NotFound(PathBuf),
    #[error("--local cannot make a directory for executord below /run or the temporary directory")]
    Directory(#[source] io::Error),
    #[error("cannot start {}", .program.display())]
    Spawn { program: PathBuf, source: io::Error },
    #[error("the private executord ended ({status}); its last words:\n  {}", .last.join("\n  "))]
    Ended { status: String, last: Vec<String> },
    #[error("the private executord was not ready within {} s; its last words:\n  {}", READY_WITHIN.as_secs(), .last.join("\n  "))]
    NotReady { last: Vec<String> },
}

impl From<LocalError> for Failure {
    fn from(error: LocalError) -> Self {
        Self::wrap(error, crate::exit::OURS)
    }
}

/// A running private executord.
pub(crate) struct PrivateDaemon {
    child: Child,
    home: PathBuf,
    served: bool,
    log: Arc<Mutex<VecDeque<String>>>,
    reader: JoinHandle<()>,
}

impl PrivateDaemon {
    /// Starts executord. Must be called on the main thread, whose death executord is told of.
    pub(crate) fn start() -> Result<Self, LocalError> {
        if !geteuid().is_root() {
            return Err(LocalError::NotRoot);
        }
        let program = find_executord()?;
        let home = make_home()?;
        let mut command = Command::new(&program);
        command
            .arg("--ephemeral")
            // The one contains the other, so that the launcher, which removes both at its end, leaves nothing, even
            // where agent-cli and executord are gone.
            .arg("--run-dir")
            .arg(&home)
            .arg("--state-dir")
            .arg(home.join("state"))
            .env_clear()
            .envs(INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(source) => {
                let _ = std::fs::remove_dir(&home);
                return Err(LocalError::Spawn { program, source });
            }
        };
        let log = Arc::new(Mutex::new(VecDeque::new()));
        let reader = tokio::spawn(keep_last_lines(child.stderr.take(), Arc::clone(&log)));
        Ok(Self { child, home, served: false, log, reader })
    }

    /// Returns the private executord's directory.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// Waits until executord serves, and connects.
    pub(crate) async fn ready(&mut self) -> Result<Client, LocalError> {
        let socket = self.home.join("executor.sock");
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            // A daemon that accepts and then does not answer must not block this program.
            if let Ok(Some(client)) = timeout(deadline - Instant::now(), serving(&socket)).await {
                self.served = true;
                return Ok(client);
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(self.ended(Ok(status)).await);
            }
            if Instant::now() >= deadline {
                return Err(LocalError::NotReady { last: self.last_lines() });
            }
            sleep(POLL).await;
        }
    }

    /// Returns when executord ends unasked.
    pub(crate) async fn lost(&mut self) -> LocalError {
        let status = self.child.wait().await;
        self.ended(status).await
    }

    /// Ends executord; the error says what could not be removed.
    pub(crate) async fn stop(mut self) -> Result<(), String> {
        if let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            // Gone in between: then the wait says so.
            let _ = kill_process(pid, Signal::TERM);
        }
        if timeout(EXIT_WITHIN, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
        let deadline = Instant::now() + if self.served { CLEARED_WITHIN } else { CLEARED_UNSERVED_WITHIN };
        while self.home.exists() {
            if Instant::now() >= deadline {
                break;
            }
            sleep(POLL).await;
        }
        self.reader.abort();
        remove_home(&self.home)
            .map_err(|why| format!("the private executord left {} behind: {why}", self.home.display()))
    }

    async fn ended(&mut self, status: io::Result<ExitStatus>) -> LocalError {
        // The launcher may hold the pipe a little longer than the daemon.
        let _ = timeout(Duration::from_millis(500), &mut self.reader).await;
        let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        LocalError::Ended { status, last: self.last_lines() }
    }

    fn last_lines(&self) -> Vec<String> {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if log.is_empty() { vec!["(nothing)".into()] } else { log.iter().cloned().collect() }
    }
}

async fn keep_last_lines(stderr: Option<ChildStderr>, log: Arc<Mutex<VecDeque<String>>>) {
    let Some(stderr) = stderr else { return };
    let mut lines = BufReader::new(stderr).split(b'\n');
    while let Ok(Some(line)) = lines.next_segment().await {
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        if log.len() == LAST_LINES {
            log.pop_front();
        }
        log.push_back(plain(&String::from_utf8_lossy(&line)));
    }
}

/// A client, if executord says that it serves.
async fn serving(socket: &Path) -> Option<Client> {
    let client = Client::connect(socket).await.ok()?;
    client.is_serving().await.ok()?.then_some(client)
}

/// Finds executord beside this program, else in PATH.
fn find_executord() -> Result<PathBuf, LocalError> {
    let own = std::env::current_exe().map_err(LocalError::Directory)?;
    executables::find("executord").ok_or(LocalError::NotFound(own))
}

/// A fresh directory that a daemon without privileges can walk through. /run is a tmpfs on every machine that
/// has one, which overlays can use; the temporary directory may be an overlay itself.
fn make_home() -> Result<PathBuf, LocalError> {
    let mut error = io::Error::from(io::ErrorKind::NotFound);
    let mut parents = vec![PathBuf::from("/run"), std::env::temp_dir(), PathBuf::from("/tmp")];
    // On a full disk nothing can run: it is the last choice.
    parents.sort_by_key(|parent| !has_room(parent));
    for parent in parents {
        let made = tempfile::Builder::new().prefix("agent-cli-").tempdir_in(&parent).and_then(|home| {
            std::fs::set_permissions(home.path(), Permissions::from_mode(0o755))?;
            Ok(home)
        });
        match made {
            Ok(home) if home.path().as_os_str().len() <= HOME_MAX => return Ok(home.keep()),
            Ok(_) => error = io::Error::from(io::ErrorKind::InvalidFilename),
            Err(failed) => error = failed,
        }
    }
    Err(LocalError::Directory(error))
}

/// Returns whether there is room for a container's state. Some file systems count no files: those report a total of 0.
fn has_room(dir: &Path) -> bool {
    rustix::fs::statvfs(dir).is_ok_and(|space| {
        space.f_bavail.saturating_mul(space.f_frsize) >= ROOM.0 && (space.f_files == 0 || space.f_favail >= ROOM.1)
    })
}

/// Removes what is left, unless something is mounted there: then a removal would reach into it.
fn remove_home(home: &Path) -> Result<(), String> {
    let table = std::fs::read("/proc/self/mountinfo").map_err(|error| error.to_string())?;
    if let Some(mount) = mounted_below(&table, home) {
        return Err(format!("{} is mounted", plain(&mount.display().to_string())));
    }
    match std::fs::remove_dir_all(home) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// Returns the first mount point below a directory in a table of mounts (proc_pid_mountinfo(5)), as the table has it. The
/// command line depends on no crate with system calls, whose parser this could be.
fn mounted_below<'a>(table: &'a [u8], home: &Path) -> Option<&'a Path> {
    let escaped = escaped(home);
    let points = table.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    points.map(|point| Path::new(OsStr::from_bytes(point))).find(|point| point.starts_with(&escaped))
}

/// Returns a path as the kernel writes it into a table of mounts.
fn escaped(path: &Path) -> PathBuf {
    let mut escaped = Vec::with_capacity(path.as_os_str().len());
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => escaped.extend(format!("\\{byte:03o}").bytes()),
            byte => escaped.push(*byte),
        }
    }
    OsString::from_vec(escaped).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sees_mounts_below_its_directory() {
        let table = b"22 1 0:20 / /run rw - tmpfs t rw\n\
            30 22 0:30 / /run/agent-cli-x1/state/c/merged rw - overlay o rw\n\
            31 22 0:31 / /\xff rw - tmpfs t rw\n\
            32 22 0:32 / /a\\040b\\134/agent-cli-y/c rw - overlay o rw\n";
        let below = |home: &str| mounted_below(table, Path::new(home));
        assert_eq!(below("/run/agent-cli-x1"), Some(Path::new("/run/agent-cli-x1/state/c/merged")));
        assert_eq!(below("/run/agent-cli-x"), None);
        assert_eq!(below("/a b\\/agent-cli-y"), Some(Path::new("/a\\040b\\134/agent-cli-y/c")));
    }
}
