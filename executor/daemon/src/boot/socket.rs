//! Provides the listening sockets, which are created here or passed by systemd.

use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use executor_sys::privileges::with_user;
use executor_sys::startup::remove_variables;
use listenfd::ListenFd;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, RawMode, Uid, chownat, fstat, openat};
use rustix::process::umask;

use super::{Account, BootError};
use crate::config::{Config, MetricsAddress};
use crate::scrape::http::Listener;

/// Environment variables of socket activation. The variables are removed, because libraries would use the descriptors.
const ACTIVATION: [&str; 4] = ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "LISTEN_FDS_FIRST_FD"];

/// Creates the control plane's socket, or receives it from systemd. Also returns true if the socket was created.
///
/// # Errors
/// Returns an error if another process serves the socket or the socket cannot be created.
pub(super) fn listener(
    config: &Config,
    account: &Account,
    group: Option<u32>,
    root: bool,
) -> Result<(UnixListener, bool), BootError> {
    let passed = activated()?;
    let failed = |what| move |source| BootError::Path { what, path: config.listen.clone(), source };
    remove_variables(&ACTIVATION).map_err(|error| BootError::Passed(error.to_string()))?;
    let (listener, created) = match passed {
        Some(listener) => (listener, false),
        None => {
            remove_stale(&config.listen)?;
            let listener = bind(&config.listen, 0o660).map_err(failed("listen on"))?;
            let group = group.unwrap_or(account.gid);
            let owner = root.then_some(account.uid);
            change_owner(&config.listen, 0o660, owner, group).map_err(failed("change the owner of"))?;
            tracing::info!(socket = %config.listen.display(), "listening");
            (listener, true)
        }
    };
    listener.set_nonblocking(true).map_err(failed("listen on"))?;
    Ok((listener, created))
}

/// Listens over TCP, if configured. Called before privileges are dropped, because ports below 1024 need them.
///
/// # Errors
/// Returns an error if the address does not belong to this host or is in use.
pub(super) fn tcp(config: &Config) -> Result<Option<TcpListener>, BootError> {
    let Some(address) = config.tcp.as_ref().map(|tcp| tcp.address) else { return Ok(None) };
    let listen = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        tracing::info!(address = %listener.local_addr()?, "listening with TLS");
        Ok(listener)
    };
    listen().map(Some).map_err(|error| BootError::Address(address, error))
}

/// Creates the socket for containers with a runtime token. Any user may connect, because each call is authorized by
/// the token. If the socket cannot be created, the daemon logs the reason and serves everything else.
pub(super) fn runtime(config: &Config, account: &Account, root: bool) -> Option<UnixListener> {
    let path = config.paths.runtime_socket();
    let listen = || -> Result<UnixListener, BootError> {
        remove_stale(&path)?;
        let listener = bind(&path, 0o666).and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
        listener.map_err(|source| BootError::Path { what: "listen on", path: path.clone(), source })
    };
    // The daemon's user owns the directory and can put any file into it, so the socket is created as that user.
    let listened = if root && account.uid != 0 {
        with_user(account.uid, account.gid, || Ok(listen()))
            .unwrap_or_else(|source| Err(BootError::Path { what: "listen on", path: path.clone(), source }))
    } else {
        listen()
    };
    match listened {
        Ok(listener) => Some(listener),
        Err(error) => {
            let error = executor_core::errors::chain(&error);
            tracing::warn!(error, "cannot create the runtime socket: containers cannot call GetSecrets");
            None
        }
    }
}

/// Creates the metrics socket, if configured. A unix socket admits the same users as the control plane's socket.
///
/// # Errors
/// Returns an error if another process serves the socket or the socket cannot be created.
pub(super) fn metrics(
    config: &Config,
    account: &Account,
    group: Option<u32>,
    root: bool,
) -> Result<Option<Listener>, BootError> {
    let listener = match &config.metrics.listen {
        None => return Ok(None),
        Some(MetricsAddress::Unix(path)) => {
            let failed = |what| move |source| BootError::Path { what, path: path.clone(), source };
            remove_stale(path)?;
            let listener = bind(path, 0o660).map_err(failed("listen on"))?;
            let owner = root.then_some(account.uid);
            change_owner(path, 0o660, owner, group.unwrap_or(account.gid)).map_err(failed("change the owner of"))?;
            listener.set_nonblocking(true).map_err(failed("listen on"))?;
            tracing::info!(socket = %path.display(), "serving metrics");
            Listener::Unix(listener)
        }
        Some(MetricsAddress::Loopback(address)) => {
            let listener = TcpListener::bind(address)
                .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
                .map_err(|error| BootError::Metrics(*address, error))?;
            tracing::info!(%address, "serving metrics");
            Listener::Tcp(listener)
        }
    };
    Ok(Some(listener))
}

/// Listens on a socket that is created with this mode, so that the mode is not changed later by path.
fn bind(path: &Path, mode: RawMode) -> io::Result<UnixListener> {
    let before = umask(Mode::from_raw_mode(!mode & 0o777));
    let listener = UnixListener::bind(path);
    umask(before);
    listener
}

/// Changes owner and group of the new socket. If another process has replaced the socket with a file, the file stays
/// unchanged.
fn change_owner(path: &Path, mode: RawMode, owner: Option<u32>, group: u32) -> io::Result<()> {
    let made = openat(CWD, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = fstat(&made)?;
    let own = found.st_uid == rustix::process::geteuid().as_raw() && found.st_nlink == 1;
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket || found.st_mode & 0o777 != mode || !own {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "the socket was replaced by another file"));
    }
    let (owner, group) = (owner.map(Uid::from_raw), Some(Gid::from_raw(group)));
    Ok(chownat(&made, c"", owner, group, AtFlags::EMPTY_PATH)?)
}

/// Returns the socket that systemd passed, if any.
fn activated() -> Result<Option<UnixListener>, BootError> {
    let mut passed = ListenFd::from_env();
    match passed.len() {
        0 => Ok(None),
        1 => passed.take_unix_listener(0).map_err(|error| BootError::Passed(error.to_string())),
        more => Err(BootError::Passed(format!("{more} sockets were passed"))),
    }
}

/// Removes a stale socket of an earlier daemon. A served socket and any other file stay.
fn remove_stale(path: &Path) -> Result<(), BootError> {
    let failed = |what| move |source| BootError::Path { what, path: path.to_owned(), source };
    let metadata = match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other.map_err(failed("read the status of"))?,
    };
    if !metadata.file_type().is_socket() {
        return Err(failed("listen on")(io::Error::new(
            ErrorKind::AlreadyExists,
            "the file exists and is not a socket",
        )));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(BootError::Served(path.to_owned())),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(failed("remove the stale socket"))
        }
        Err(error) => Err(failed("connect to")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unserved_socket_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        remove_stale(&path).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        assert!(matches!(remove_stale(&path), Err(BootError::Served(_))));
        drop(listener);
        assert!(path.exists());
        remove_stale(&path).unwrap();
        assert!(!path.exists());
        std::fs::write(&path, "precious").unwrap();
        assert!(executor_core::errors::chain(&remove_stale(&path).unwrap_err()).contains("not a socket"));
        assert!(path.exists());
    }

    /// If the owner of the runtime socket's directory keeps replacing the socket with symlinks to a file owned by root
    /// during a start, the file is never changed.
    #[test]
    #[ignore = "needs root, to act as another user"]
    fn planted_runtime_socket_link_is_not_followed() {
        const ALONE: &str = "EXECUTORD_TEST_RUNTIME_SOCKET";
        if std::env::var_os(ALONE).is_none() {
            let mut again = std::process::Command::new("/proc/self/exe");
            let name = "boot::socket::tests::planted_runtime_socket_link_is_not_followed";
            assert!(again.args(["--include-ignored", "--exact", name]).env(ALONE, "1").status().unwrap().success());
            return;
        }
        use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
        use std::sync::atomic::{AtomicBool, Ordering};
        let home = tempfile::tempdir().unwrap();
        std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let user = Account { name: "user".into(), uid: 4242, gid: 4242 };
        let args = ["executord", "--run-dir", home.path().to_str().unwrap()];
        let args = <crate::config::cli::Args as clap::Parser>::parse_from(args);
        let config = Config::load(&args).unwrap();
        let (victim, socket) = (home.path().join("victim"), config.paths.runtime_socket());
        std::fs::write(&victim, "precious").unwrap();
        std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
        let dir = config.paths.runtime_dir();
        std::fs::create_dir(&dir).unwrap();
        chown(&dir, Some(4242), Some(4242)).unwrap();
        let (ended, mut listened) = (AtomicBool::new(false), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let link = dir.join("link");
                while !ended.load(Ordering::Relaxed) {
                    let _ = symlink(&victim, &link).and_then(|()| std::fs::rename(&link, &socket));
                    std::thread::yield_now();
                    let _ = std::fs::remove_file(&socket);
                    std::thread::yield_now();
                }
            });
            for _ in 0..1000 {
                listened += u32::from(runtime(&config, &user, true).is_some());
            }
            ended.store(true, Ordering::Relaxed);
        });
        let meta = victim.metadata().unwrap();
        assert_eq!((meta.uid(), meta.mode() & 0o777), (0, 0o600));
        assert!(listened > 0, "control failed: every start failed");
        let _ = std::fs::remove_file(&socket);
        let listener = runtime(&config, &user, true);
        let meta = socket.metadata().unwrap();
        assert_eq!((meta.uid(), meta.mode() & 0o777, listener.is_some()), (4242, 0o666, true));
    }
}
