//! From a process as it was started to one that may serve.
//!
//! ```text
//! root:          directories, lock, listen, launcher  ──>  privileges dropped  ──>  serve
//! unprivileged:  lock, listen or take the socket, launcher if it is there       ──>  serve
//! ```
//! All of it happens while there is one thread, before the runtime and before a client is heard: privileges and
//! capabilities belong to threads, and what reads the network's bytes must have none.

mod account;
mod dirs;
mod launcher;
mod socket;

use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use executor_sys::privileges;
use executor_sys::seqpacket::Seqpacket;

use crate::api::auth::Access;
use crate::config::Config;

pub use account::Account;
pub use dirs::Lock;
pub use launcher::StartedLauncher;

/// Why the daemon cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// A directory or file cannot be made as it must be.
    #[error("cannot {} {}", .what, .path.display())]
    Path {
        /// What was to be done.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The user to serve as cannot come to its own files.
    #[error("{} is closed to user {}: its mode is {:o}, and the way to {} leads through it", .at.display(), .user, .mode, .path.display())]
    Closed {
        /// Where.
        at: PathBuf,
        /// Its mode.
        mode: u32,
        /// Whom it is closed to.
        user: String,
        /// Where the way leads.
        path: PathBuf,
    },
    /// Another daemon is there.
    #[error("another executord ({}) serves state directory {}", .who, .dir.display())]
    Locked {
        /// Its pid, as far as it is told.
        who: String,
        /// Which directory.
        dir: PathBuf,
    },
    /// A user or group that does not exist.
    #[error("there is no {what} `{name}` in {file}")]
    NoSuch {
        /// User or group.
        what: &'static str,
        /// Its name.
        name: String,
        /// Where it was looked for.
        file: &'static str,
    },
    /// Somebody serves the socket already.
    #[error("somebody else serves {}", .0.display())]
    Served(PathBuf),
    /// What systemd passed is no socket to listen on.
    #[error("the sockets passed in LISTEN_FDS are not one listening unix stream socket: {0}")]
    Passed(String),
    /// The launcher did not come up.
    #[error("the launcher {}: {}", .program.display(), .why)]
    Launcher {
        /// Its program.
        program: PathBuf,
        /// What became of it.
        why: String,
    },
    /// Privileges could not be given up.
    #[error("cannot give up privileges for user {user}")]
    Privileges {
        /// Whom to become.
        user: String,
        /// Why not.
        source: std::io::Error,
    },
}

/// A process that may serve.
#[derive(Debug)]
pub struct Booted {
    /// Where clients connect.
    pub listener: UnixListener,
    /// Where containers with a token connect.
    pub runtime: Option<UnixListener>,
    /// A connection to the launcher, where there is one.
    pub launcher: Option<Seqpacket>,
    /// The launcher, where this process started it.
    pub started: Option<StartedLauncher>,
    /// Who may call.
    pub access: Access,
    /// Held until the end: one daemon on a state directory.
    pub lock: Lock,
}

/// Makes this process one that may serve.
///
/// # Errors
/// See [`BootError`].
pub fn boot(config: &Config) -> Result<Booted, BootError> {
    let parent = rustix::process::getppid().map_or(0, rustix::process::Pid::as_raw_pid);
    let root = rustix::process::geteuid().is_root();
    let account = Account::to_serve_as(config, root)?;
    let group = config.allow_group.as_deref().map(account::group).transpose()?;
    let ledger = dirs::prepare(&config.paths, &account, root)?;
    let lock = dirs::lock(&config.paths, ledger, &account, root)?;
    let listener = socket::listener(config, &account, group, root)?;
    let runtime = socket::runtime(config, &account, root);
    // A socket that nobody will serve is not left behind; after the privileges are gone it cannot be removed.
    let (launcher, started) =
        launcher::connect(config, &account, root).inspect_err(|_| drop(std::fs::remove_file(&config.listen)))?;
    keep_out_of_swap(!root || config.keep_root);
    give_up(config, &account, root, parent)?;
    raise_descriptors();
    let access = Access { own_uid: account.uid, group };
    Ok(Booted { listener, runtime, launcher, started, access, lock })
}

/// From here on this process can do what its user can, and no more.
fn give_up(config: &Config, account: &Account, root: bool, parent: i32) -> Result<(), BootError> {
    let failed = |source| BootError::Privileges { user: account.name.clone(), source };
    if root && !config.keep_root {
        privileges::drop_to(account.uid, account.gid).map_err(failed)?;
        tracing::info!(user = account.name, uid = account.uid, gid = account.gid, "privileges dropped");
    } else if root {
        tracing::warn!("serving with root's privileges, as asked for");
    }
    privileges::forbid_core_files().map_err(failed)?;
    if config.ephemeral {
        privileges::end_with_parent(parent).map_err(failed)?;
    }
    Ok(())
}

/// A request's secrets are in this process's memory for a moment, and swap would keep them.
fn keep_out_of_swap(stays_as_it_is: bool) {
    match privileges::keep_out_of_swap(stays_as_it_is) {
        Ok(true) => tracing::debug!("memory is locked"),
        Ok(false) => tracing::debug!("memory is not locked: the limit on locked memory (LimitMEMLOCK) is finite"),
        Err(error) => tracing::warn!(%error, "memory cannot be locked"),
    }
}

/// Each container takes a descriptor, and the soft limit is 1,024 on most machines.
fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(error = %std::io::Error::from(error), "the limit on open files stays as it is");
    }
}
