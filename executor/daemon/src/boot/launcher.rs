//! Finds the launcher, or starts it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use executor_sys::seqpacket::Seqpacket;
use executor_sys::startup::in_own_session;

use super::{Account, BootError};
use crate::config::Config;

/// How long a launcher may take until it listens: before that it takes what earlier ones left off its networks, for which
/// alone it has 30 s.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between looks whether it does, or has ended: nothing tells when a socket begins to listen.
const LOOK: Duration = Duration::from_millis(2);

/// A launcher that this process started.
#[derive(Debug)]
pub struct StartedLauncher {
    child: Child,
}

impl StartedLauncher {
    /// What to say of it when its connection is lost. Takes it off the process table when it has ended.
    pub fn obituary(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(Some(status)) => Some(format!(
                "the launcher that this executord started has ended ({status}), and without root it cannot start another"
            )),
            _ => None,
        }
    }

    /// Waits until it has ended, so that it leaves no process behind either; whether it did in time.
    pub fn ended_within(&mut self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while let Ok(None) = self.child.try_wait() {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }
}

/// A connection to the launcher; where there is none and this is root, one that is started now.
///
/// # Errors
/// It was to be started and did not come up.
pub(super) fn connect(
    config: &Config,
    account: &Account,
    root: bool,
) -> Result<(Option<Seqpacket>, Option<StartedLauncher>), BootError> {
    let socket = config.paths.launcher_socket();
    match Seqpacket::connect(&socket) {
        Ok(connection) => Ok((Some(connection), None)),
        Err(error) if !root => {
            tracing::warn!(socket = %socket.display(), %error, "no launcher yet, and without root none is started");
            Ok((None, None))
        }
        Err(_) => {
            let program = program(config)?;
            let child = start(&program, config, account)?;
            let mut started = StartedLauncher { child };
            let connection = await_listening(&program, &socket, &mut started)?;
            tracing::info!(program = %program.display(), pid = started.child.id(), "launcher started");
            Ok((Some(connection), Some(started)))
        }
    }
}

/// The launcher's program: as configured, or beside our own.
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
        // Its working directory may be another one.
        command.arg("--config").arg(std::path::absolute(file).unwrap_or_else(|_| file.clone()));
    }
    if config.ephemeral {
        command.args(["--ephemeral", "--allow-host-network"]);
        if config.policy.images.is_open() {
            command.arg("--allow-any-image");
        }
    }
    // Nothing of our environment is its business, and some of it would be harmful (NOTIFY_SOCKET).
    command.env_clear().current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    in_own_session(&mut command).spawn().map_err(|error| BootError::Launcher {
        program: program.to_owned(),
        why: format!("cannot be started: {error}"),
    })
}

fn await_listening(program: &Path, socket: &Path, started: &mut StartedLauncher) -> Result<Seqpacket, BootError> {
    let failed = |why: String| BootError::Launcher { program: program.to_owned(), why };
    let deadline = Instant::now() + PATIENCE;
    loop {
        let why = match Seqpacket::connect(socket) {
            Ok(connection) => return Ok(connection),
            Err(why) => why,
        };
        if let Ok(Some(status)) = started.child.try_wait() {
            return Err(failed(format!("ended ({status}) before it listened on {}", socket.display())));
        }
        if Instant::now() > deadline {
            let _ = started.child.kill();
            let _ = started.child.wait();
            return Err(failed(format!("did not listen on {} within {PATIENCE:?}: {why}", socket.display())));
        }
        std::thread::sleep(LOOK);
    }
}
