//! `--local`: a private executord for a single command.
//!
//! The private executord runs in a fresh temporary directory and is ready when its health service reports so. After the
//! command, this program sends SIGTERM to executord, waits for its exit, and waits until its directories are removed.
//! If this program exits first, executord detects the exit (`--ephemeral`). executord inherits only a few environment
//! variables, because other variables may hold secrets for `@env:` sources. executord runs in its own process group:
//! Ctrl-C at the terminal reaches only this program, which decides how to react.

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

/// Maximum time until executord serves.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time for executord to kill its containers and exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time for the launcher to remove the directories after executord has exited.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Like `CLEANUP_TIMEOUT`, for an executord that never served: such an executord may not have started a launcher.
const UNSERVED_CLEANUP_TIMEOUT: Duration = Duration::from_secs(1);
/// Polling interval for conditions without a notification.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Number of log lines that an error shows.
const LAST_LINES: usize = 12;
/// Maximum length of the directory's path, in bytes. With a longer path, the sockets of containers
/// (`run/containers/UUID/shim.sock`) would exceed the maximum length of a unix socket's path, 107 bytes.
const HOME_MAX: usize = 45;
/// Free bytes and inodes that executord, its launcher and a container need. executord refuses new containers below 4
/// MiB or 8 inodes.
const ROOM: (u64, u64) = (64 << 20, 1000);
/// Environment variables that the daemon inherits.
const INHERITED: [&str; 5] = ["PATH", "HOME", "TMPDIR", "RUST_LOG", "RUST_BACKTRACE"];

#[derive(Debug, thiserror::Error)]
pub(crate) enum LocalError {
    #[error(
        "--local starts an executord, which needs root: run `sudo agent-cli --local ...`, or connect to a running \
         executord with --socket"
    )]
    NotRoot,
    #[error("--local: there is no executord next to {} or in PATH", .0.display())]
    NotFound(PathBuf),
    #[error("--local: cannot create a directory for executord below /run or the temporary directory")]
    Directory(#[source] io::Error),
    #[error("cannot start {}", .program.display())]
    Spawn { program: PathBuf, source: io::Error },
    #[error("the private executord exited ({status}); end of its log:\n  {}", .last.join("\n  "))]
    Ended { status: String, last: Vec<String> },
    #[error(
        "the private executord was not ready within {} s; end of its log:\n  {}",
        READY_TIMEOUT.as_secs(),
        .last.join("\n  ")
    )]
    NotReady { last: Vec<String> },
}

impl From<LocalError> for Failure {
    fn from(error: LocalError) -> Self {
        Self::wrap(error, crate::exit::OURS)
    }
}

pub(crate) struct PrivateDaemon {
    child: Child,
    home: PathBuf,
    served: bool,
    log: Arc<Mutex<VecDeque<String>>>,
    reader: JoinHandle<()>,
}

impl PrivateDaemon {
    /// Starts executord. Must be called on the main thread, because executord gets a signal when the calling thread
    /// exits.
    pub(crate) fn start() -> Result<Self, LocalError> {
        if !geteuid().is_root() {
            return Err(LocalError::NotRoot);
        }
        let program = find_executord()?;
        let home = make_home()?;
        let mut command = Command::new(&program);
        command
            .arg("--ephemeral")
            // The state directory is below the run directory. The launcher removes both when it exits, so nothing
            // remains even if agent-cli and executord exited earlier.
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
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            // Do not block if the daemon accepts the connection but does not respond.
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
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until executord exits unexpectedly.
    pub(crate) async fn lost(&mut self) -> LocalError {
        let status = self.child.wait().await;
        self.ended(status).await
    }

    /// Stops executord. Returns an error if its directories could not be removed.
    pub(crate) async fn stop(mut self) -> Result<(), String> {
        if let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            // ESRCH is ignored: the wait below reports an earlier exit.
            let _ = kill_process(pid, Signal::TERM);
        }
        if timeout(EXIT_TIMEOUT, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
        let deadline = Instant::now() + if self.served { CLEANUP_TIMEOUT } else { UNSERVED_CLEANUP_TIMEOUT };
        while self.home.exists() {
            if Instant::now() >= deadline {
                break;
            }
            sleep(POLL_INTERVAL).await;
        }
        self.reader.abort();
        remove_home(&self.home)
            .map_err(|why| format!("the private executord did not remove {}: {why}", self.home.display()))
    }

    async fn ended(&mut self, status: io::Result<ExitStatus>) -> LocalError {
        // The launcher may keep the pipe open a little longer than the daemon.
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

/// Connects; returns a client if executord reports that it serves.
async fn serving(socket: &Path) -> Option<Client> {
    let client = Client::connect(socket).await.ok()?;
    client.is_serving().await.ok()?.then_some(client)
}

/// Finds executord next to this program, else in PATH.
fn find_executord() -> Result<PathBuf, LocalError> {
    executables::find("executord").ok_or_else(|| {
        let own = std::env::current_exe();
        LocalError::NotFound(own.unwrap_or_else(|_| "this program".into()))
    })
}

/// Creates a fresh directory that an unprivileged daemon can traverse. Prefers /run: it is a tmpfs, which supports
/// overlays. The temporary directory may be an overlay itself.
fn make_home() -> Result<PathBuf, LocalError> {
    let mut error = io::Error::from(io::ErrorKind::NotFound);
    let mut parents = vec![PathBuf::from("/run"), std::env::temp_dir(), PathBuf::from("/tmp")];
    // A full disk is the last choice, because nothing can run there.
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

/// Returns true if the file system of `dir` has space for a container's state. File systems without an inode limit
/// report 0 inodes in total.
fn has_room(dir: &Path) -> bool {
    rustix::fs::statvfs(dir).is_ok_and(|space| {
        space.f_bavail.saturating_mul(space.f_frsize) >= ROOM.0 && (space.f_files == 0 || space.f_favail >= ROOM.1)
    })
}

/// Removes the private executord's directory. Returns an error if a file system is mounted below the directory, because
/// the removal would delete the files of that file system.
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

/// Returns the first mount point below a directory in a mount table (proc_pid_mountinfo(5)), escaped as in the table.
/// This crate does not depend on the crate that has the parser of mount tables, because that crate makes system calls.
fn mounted_below<'a>(table: &'a [u8], home: &Path) -> Option<&'a Path> {
    let escaped = escaped(home);
    let points = table.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    points.map(|point| Path::new(OsStr::from_bytes(point))).find(|point| point.starts_with(&escaped))
}

/// Escapes a path like the kernel does in mount tables.
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
