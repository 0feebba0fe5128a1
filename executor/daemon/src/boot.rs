//! Prepares the process to serve: directories, sockets, launcher, privileges.
//!
//! ```text
//! root:          directories, lock, listen, launcher  ──>  privileges dropped  ──>  serve
//! unprivileged:  lock, listen or inherit the socket, connect to a launcher      ──>  serve
//! ```
//! All of this runs while the process has one thread, before the runtime starts and before any client data is read:
//! privileges and capabilities are per thread, and code that reads client data must have none.

mod account;
mod dirs;
mod launcher;
mod socket;

use std::path::PathBuf;

use executor_sys::seqpacket::Seqpacket;
use executor_sys::{heap, privileges};

use crate::access::Access;
use crate::config::Config;
use crate::server::Listeners;

pub use account::{Account, missing};
pub use dirs::Lock;
pub use launcher::StartedLauncher;

/// An error that prevents the process from serving.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// An operation on a path failed.
    #[error("cannot {} {}", .what, .path.display())]
    Path {
        /// The failed operation, such as `read`.
        what: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// The daemon's user cannot reach the daemon's directory.
    #[error("user {} cannot reach {}: no permission to enter {} (mode {:o})", .user, .path.display(), .at.display(), .mode)]
    Closed {
        /// The directory that the user may not enter.
        at: PathBuf,
        /// The directory's mode.
        mode: u32,
        /// The daemon's user.
        user: String,
        /// The daemon's directory.
        path: PathBuf,
    },
    /// Another daemon holds the lock.
    #[error("another executord ({}) is using state directory {}", .who, .dir.display())]
    Locked {
        /// The other daemon's pid, if known.
        who: String,
        /// The state directory.
        dir: PathBuf,
    },
    /// A user or group does not exist.
    #[error("unknown {what} `{name}`: not found in {file}")]
    NoSuch {
        /// `user` or `group`.
        what: &'static str,
        name: String,
        /// The file that lists the users or groups of the host.
        file: &'static str,
    },
    /// The daemon has no user of its own, and no dynamic id is free.
    #[error(
        "all ids from {first} to {last} are in use by users, groups or processes: create the user `executor`, or set `user`"
    )]
    NoFreeUser {
        /// First id of the range of dynamic ids.
        first: u32,
        /// Last id of the range of dynamic ids.
        last: u32,
    },
    /// The metrics address cannot be used.
    #[error("cannot listen on {} (metrics.listen)", .0)]
    Metrics(std::net::SocketAddr, #[source] std::io::Error),
    /// Another process serves the socket.
    #[error("another process already listens on {}", .0.display())]
    Served(PathBuf),
    /// The address of the TCP listener cannot be used.
    #[error("cannot listen on {} (listen.tcp.address)", .0)]
    Address(std::net::SocketAddr, #[source] std::io::Error),
    /// The sockets from systemd cannot be used.
    #[error("LISTEN_FDS must pass exactly one listening unix stream socket: {0}")]
    Passed(String),
    /// The launcher cannot be started.
    #[error("the launcher {}: {}", .program.display(), .why)]
    Launcher {
        /// The launcher's program.
        program: PathBuf,
        why: String,
    },
    /// The privileges of the process cannot be restricted.
    #[error("cannot restrict the privileges of this process (user {user})")]
    Privileges {
        /// User to which the process switches.
        user: String,
        source: std::io::Error,
    },
}

/// Everything that a prepared process needs to serve.
#[derive(Debug)]
pub struct Booted {
    /// Sockets on which the daemon listens.
    pub listeners: Listeners,
    /// Connection to the launcher, if one is running.
    pub launcher: Option<Seqpacket>,
    /// The launcher, if this process started it.
    pub started: Option<StartedLauncher>,
    /// Local clients that may call the daemon.
    pub access: Access,
    /// Lock on the state directory, held until exit.
    pub lock: Lock,
}

/// Prepares this process to serve.
///
/// # Errors
/// Returns [`BootError`] if any step fails.
pub fn boot(config: &Config) -> Result<Booted, BootError> {
    heap::keep_freed();
    let parent = rustix::process::getppid().map_or(0, rustix::process::Pid::as_raw_pid);
    let root = rustix::process::geteuid().is_root();
    let account = Account::to_serve_as(config, root)?;
    let group = config.allow_group.as_deref().map(account::group).transpose()?;
    let ledger = dirs::prepare(&config.paths, &account, root)?;
    let lock = dirs::lock(&config.paths, ledger, &account, root)?;
    let (listener, created) = socket::listener(config, &account, group, root)?;
    let runtime = socket::runtime(config, &account, root);
    let connect = || {
        let tcp = socket::tcp(config)?;
        let metrics = socket::metrics(config, &account, group, root)?;
        Ok((tcp, metrics, launcher::connect(config, &account, root)?))
    };
    // On failure remove the created socket: no process serves it, and an unprivileged process could not remove it.
    let (tcp, metrics, (launcher, started)) = connect().inspect_err(|_: &BootError| {
        if created {
            drop(std::fs::remove_file(&config.listen));
        }
    })?;
    keep_out_of_swap(!root || config.keep_root);
    drop_privileges(config, &account, root, parent)?;
    raise_descriptors();
    // The daemon was started as root and runs as the overflow user, which other programs may use, too.
    let shared = root && account.uid == account::OVERFLOW_UID;
    if shared {
        tracing::warn!(
            "running as the overflow user, which other programs may also use: calls from this user are refused; set `user` to a dedicated user"
        );
    }
    let access = Access { own_uid: (!shared).then_some(account.uid), group };
    Ok(Booted { listeners: Listeners { main: listener, runtime, tcp, metrics }, launcher, started, access, lock })
}

/// Drops all privileges, so that this process has only the rights of its user.
fn drop_privileges(config: &Config, account: &Account, root: bool, parent: i32) -> Result<(), BootError> {
    let failed = |source| BootError::Privileges { user: account.name.clone(), source };
    if root && !config.keep_root {
        privileges::drop_to(account.uid, account.gid).map_err(failed)?;
        tracing::info!(user = account.name, uid = account.uid, gid = account.gid, "privileges dropped");
    } else if root {
        tracing::warn!("serving with root's privileges, as configured by keep_root");
    }
    privileges::forbid_core_files().map_err(failed)?;
    if config.ephemeral {
        privileges::set_parent_death_signal(parent).map_err(failed)?;
    }
    Ok(())
}

/// Locks this process's memory, so that secrets of requests are not swapped out.
fn keep_out_of_swap(privileges_are_final: bool) {
    match privileges::keep_out_of_swap(privileges_are_final) {
        Ok(true) => tracing::debug!("memory is locked"),
        Ok(false) => tracing::debug!("memory is not locked: the limit on locked memory (LimitMEMLOCK) is finite"),
        Err(error) => tracing::warn!(%error, "cannot lock the memory: secrets may be swapped out"),
    }
}

/// Raises the soft descriptor limit to the hard limit: each container needs a descriptor, and the soft limit is often
/// 1,024.
fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(error = %std::io::Error::from(error), "cannot raise the soft limit on open files");
    }
}
