//! Connects to the launcher, or starts one.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use executor_core::protocol::LauncherRequest;
use executor_sys::process;
use executor_sys::ready::is_readable;
use executor_sys::seqpacket::Seqpacket;
use executor_sys::startup::in_own_session;
use prost::Message as _;
use rustix::io::Errno;

use super::{Account, BootError};
use crate::config::Config;

/// Time limit for the launcher to listen. Before listening, the launcher removes leftover networks of earlier
/// launchers. This removal alone may take 30 s.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(60);
/// Poll interval: there is no notification when a socket starts to listen.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Time limit for a listening launcher to respond or exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without a response from a listening launcher after which executord logs that it waits.
const WAIT_LOG_DELAY: Duration = Duration::from_millis(200);
/// Maximum length of the response to an unknown request, in bytes.
const ANSWER_MAX: usize = 1024;

/// A launcher that this process started.
#[derive(Debug)]
pub struct StartedLauncher {
    child: Child,
}

impl StartedLauncher {
    /// Reaps the launcher if it has exited, and returns the reason for the lost connection.
    pub fn exit_reason(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(Some(status)) => Some(format!(
                "the launcher that this executord started has exited ({status}); without root privileges it cannot start another"
            )),
            _ => None,
        }
    }

    /// Waits until the launcher has exited and reaps it; returns true if it exited in time.
    pub fn ended_within(&mut self, patience: Duration) -> bool {
        poll(patience, || (!matches!(self.child.try_wait(), Ok(None))).then_some(())).is_some()
    }
}

/// Calls `condition` until it returns a value; `None` at the time limit.
fn poll<T>(patience: Duration, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + patience;
    loop {
        match condition() {
            None if Instant::now() > deadline => return None,
            None => std::thread::sleep(POLL_INTERVAL),
            found => return found,
        }
    }
}

/// Connects to the launcher. As root, starts a launcher if none listens.
///
/// # Errors
/// Returns an error if the launcher cannot be started.
pub(super) fn connect(
    config: &Config,
    account: &Account,
    root: bool,
) -> Result<(Option<Seqpacket>, Option<StartedLauncher>), BootError> {
    let socket = config.paths.launcher_socket();
    match Seqpacket::connect_to_living(&socket) {
        Err(error) if !root => {
            tracing::warn!(socket = %socket.display(), %error, "cannot connect to the launcher, and cannot start one without root privileges");
            Ok((None, None))
        }
        Ok(connection) if !root || !is_dying(&socket, EXIT_TIMEOUT) => Ok((Some(connection), None)),
        _ => {
            let program = program(config)?;
            let child = start(&program, config, account)?;
            let mut started = StartedLauncher { child };
            let connection = await_listening(&program, &socket, &mut started)?;
            tracing::info!(program = %program.display(), pid = started.child.id(), "launcher started");
            Ok((Some(connection), Some(started)))
        }
    }
}

/// Returns true if no launcher listens, or if the launcher exits within `patience`. Returns false if the launcher
/// responds first, or if `patience` ends first. A killed launcher accepts connections until the kernel has torn down
/// the process.
fn is_dying(socket: &Path, patience: Duration) -> bool {
    // Use a second connection: on the first connection, a late response would be mistaken for the response to the
    // greeting.
    let Ok(connection) = Seqpacket::connect_to_living(socket) else { return true };
    // A message with only default values would be empty, and an empty message means the end of the connection.
    let request = LauncherRequest { sequence: 1, call: None };
    let peer = match connection.peer_pid() {
        Ok(0) | Err(_) => return false, // in another PID namespace: its exit cannot be seen
        Ok(pid) => process::pidfd(pid),
    };
    let peer = match peer {
        Ok(peer) => peer,
        Err(error) => return Errno::from_io_error(&error) == Some(Errno::SRCH),
    };
    let mut is_closed = connection.send(&request.encode_to_vec(), &[]).is_err();
    connection.set_nonblocking(true);
    let (began, mut is_logged) = (Instant::now(), false);
    let state = poll(patience, || {
        if !is_logged && began.elapsed() > WAIT_LOG_DELAY {
            is_logged = true;
            tracing::info!(patience = ?patience, "waiting for the launcher to respond or to exit");
        }
        if is_readable(&peer) {
            return Some(true);
        }
        if is_closed {
            return None; // the launcher is about to exit, or serves its maximum number of daemons
        }
        match connection.recv(&mut [0; ANSWER_MAX]) {
            Ok(Some(_)) => return Some(false),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Ok(None) | Err(_) => is_closed = true,
        }
        None
    });
    state.unwrap_or(false)
}

/// Returns the launcher's executable: the configured path, or `executor-launcher` next to executord.
fn program(config: &Config) -> Result<PathBuf, BootError> {
    match &config.launcher {
        Some(program) => Ok(program.clone()),
        None => {
            let own = std::env::current_exe();
            let own = own.map_err(|source| BootError::Path { what: "find", path: "/proc/self/exe".into(), source })?;
            Ok(own.with_file_name("executor-launcher"))
        }
    }
}

fn start(program: &Path, config: &Config, account: &Account) -> Result<Child, BootError> {
    let mut command = Command::new(program);
    command
        .arg("--run-dir")
        .arg(&config.paths.run_dir)
        .arg("--state-dir")
        .arg(&config.paths.state_dir)
        .arg("--daemon-user")
        .arg(account.uid.to_string())
        .arg("--exit-when-idle");
    if let Some(file) = &config.file {
        // The launcher's working directory differs from this process's.
        command.arg("--config").arg(std::path::absolute(file).unwrap_or_else(|_| file.clone()));
    }
    if config.ephemeral {
        command.args(["--ephemeral", "--allow-host-network"]);
        if config.policy.images.is_open() {
            command.arg("--allow-any-image");
        }
    }
    // The launcher needs no environment variable, and some would be harmful (NOTIFY_SOCKET).
    command.env_clear().current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    in_own_session(&mut command).spawn().map_err(|error| BootError::Launcher {
        program: program.to_owned(),
        why: format!("cannot be started: {error}"),
    })
}

fn await_listening(program: &Path, socket: &Path, started: &mut StartedLauncher) -> Result<Seqpacket, BootError> {
    let failed = |why: String| BootError::Launcher { program: program.to_owned(), why };
    let mut refused = None;
    let found = poll(LISTEN_TIMEOUT, || match Seqpacket::connect_to_living(socket) {
        Ok(connection) => Some(Ok(connection)),
        Err(error) => {
            refused = Some(error);
            let status = started.child.try_wait().ok()??;
            Some(Err(failed(format!("exited ({status}) before it listened on {}", socket.display()))))
        }
    });
    found.unwrap_or_else(|| {
        let _ = started.child.kill();
        let _ = started.child.wait();
        let why = refused.map(|error| format!(": {error}")).unwrap_or_default();
        Err(failed(format!("did not listen on {} within {} s{why}", socket.display(), LISTEN_TIMEOUT.as_secs())))
    })
}

#[cfg(test)]
mod tests {
    use executor_sys::seqpacket::SeqpacketListener;

    use super::*;

    /// A launcher is alive if it responds, is busy, or only closes a connection.
    #[test]
    fn launchers_live_until_they_exit() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("launcher.sock");
        assert!(is_dying(&socket, Duration::ZERO), "no launcher listens");
        let listener = SeqpacketListener::bind(&socket).unwrap();
        let serve = |answers: bool| {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let connection = listener.accept().unwrap();
                    let request = connection.recv(&mut [0; ANSWER_MAX]).unwrap();
                    if answers && request.is_some() {
                        connection.send(b"answer", &[]).unwrap();
                    }
                });
                is_dying(&socket, Duration::from_millis(500))
            })
        };
        assert!(!serve(true));
        assert!(!serve(false), "a launcher that only closes connections was restarted");
        assert!(!is_dying(&socket, Duration::from_millis(50)), "a busy launcher was restarted");
    }
}
