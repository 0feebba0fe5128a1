//! The socket that clients connect to: made here, or passed by systemd.

use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use executor_sys::privileges::as_user;
use executor_sys::startup::forget_variables;
use listenfd::ListenFd;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, RawMode, Uid, chownat, fstat, openat};
use rustix::process::umask;

use super::{Account, BootError};
use crate::config::Config;

/// What a socket activation leaves in the environment. Libraries below take the descriptors for their own.
const ACTIVATION: [&str; 4] = ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "LISTEN_FDS_FIRST_FD"];

/// The listening socket.
///
/// # Errors
/// Somebody serves there already, or it cannot be made.
pub(super) fn listener(
    config: &Config,
    account: &Account,
    group: Option<u32>,
    root: bool,
) -> Result<UnixListener, BootError> {
    let passed = passed()?;
    let failed = |what| move |source| BootError::Path { what, path: config.listen.clone(), source };
    forget_variables(&ACTIVATION).map_err(|error| BootError::Passed(error.to_string()))?;
    let listener = match passed {
        Some(listener) => listener,
        None => {
            remove_stale(&config.listen)?;
            let listener = bind(&config.listen, 0o660).map_err(failed("listen on"))?;
            let group = group.unwrap_or(account.gid);
            let owner = root.then_some(account.uid);
            give(&config.listen, 0o660, owner, group).map_err(failed("change the owner of"))?;
            tracing::info!(socket = %config.listen.display(), "listening");
            listener
        }
    };
    listener.set_nonblocking(true).map_err(failed("listen on"))?;
    Ok(listener)
}

/// The socket that containers with a token see. Everybody may connect: the token decides. Without it the daemon serves
/// all the rest; why there is none is told.
pub(super) fn runtime(config: &Config, account: &Account, root: bool) -> Option<UnixListener> {
    let path = config.paths.runtime_socket();
    let listen = || -> Result<UnixListener, BootError> {
        remove_stale(&path)?;
        let listener = bind(&path, 0o666).and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
        listener.map_err(|source| BootError::Path { what: "listen on", path: path.clone(), source })
    };
    // The directory is the user's, who may have anything in it: it is made there as that user.
    let listened = if root && account.uid != 0 {
        as_user(account.uid, account.gid, || Ok(listen()))
            .unwrap_or_else(|source| Err(BootError::Path { what: "listen on", path: path.clone(), source }))
    } else {
        listen()
    };
    match listened {
        Ok(listener) => Some(listener),
        Err(error) => {
            let error = crate::chain(&error);
            tracing::warn!(error, "containers cannot ask for their secrets: there is no runtime socket");
            None
        }
    }
}

/// Listens. The socket has this mode from its first moment on: nothing is looked up by its name once more.
fn bind(path: &Path, mode: RawMode) -> io::Result<UnixListener> {
    let before = umask(Mode::from_raw_mode(!mode & 0o777));
    let listener = UnixListener::bind(path);
    umask(before);
    listener
}

/// Gives the socket that was just made to its owner and group; what somebody else put into its place is left alone.
fn give(path: &Path, mode: RawMode, owner: Option<u32>, group: u32) -> io::Result<()> {
    let made = openat(CWD, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = fstat(&made)?;
    let own = found.st_uid == rustix::process::geteuid().as_raw() && found.st_nlink == 1;
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket || found.st_mode & 0o777 != mode || !own {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "another file was put in its place"));
    }
    let (owner, group) = (owner.map(Uid::from_raw), Some(Gid::from_raw(group)));
    Ok(chownat(&made, c"", owner, group, AtFlags::EMPTY_PATH)?)
}

/// The socket of a socket activation, if there was one.
fn passed() -> Result<Option<UnixListener>, BootError> {
    let mut passed = ListenFd::from_env();
    match passed.len() {
        0 => Ok(None),
        1 => passed.take_unix_listener(0).map_err(|error| BootError::Passed(error.to_string())),
        more => Err(BootError::Passed(format!("there are {more}"))),
    }
}

/// Removes a socket that a dead daemon left. One that is served, and what is no socket, stays.
fn remove_stale(path: &Path) -> Result<(), BootError> {
    let failed = |what| move |source| BootError::Path { what, path: path.to_owned(), source };
    let metadata = match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other.map_err(failed("look at"))?,
    };
    if !metadata.file_type().is_socket() {
        return Err(failed("listen on")(io::Error::new(ErrorKind::AlreadyExists, "it exists and is no socket")));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(BootError::Served(path.to_owned())),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(failed("remove the stale socket"))
        }
        Err(error) => Err(failed("look who serves")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_that_nobody_serves_is_removed() {
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
        assert!(crate::chain(&remove_stale(&path).unwrap_err()).contains("no socket"));
        assert!(path.exists());
    }

    /// Whoever owns the directory of the runtime socket puts links to a file of root's into the socket's place, in every
    /// moment of a start: the file is never touched.
    #[test]
    fn a_link_in_the_place_of_the_runtime_socket_leads_nowhere() {
        const ALONE: &str = "EXECUTORD_TEST_RUNTIME_SOCKET";
        if !rustix::process::geteuid().is_root() {
            return;
        }
        if std::env::var_os(ALONE).is_none() {
            let mut again = std::process::Command::new("/proc/self/exe");
            let name = "boot::socket::tests::a_link_in_the_place_of_the_runtime_socket_leads_nowhere";
            assert!(again.args(["--exact", name]).env(ALONE, "1").status().unwrap().success());
            return;
        }
        use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
        use std::sync::atomic::{AtomicBool, Ordering};
        let home = tempfile::tempdir().unwrap();
        std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let user = Account { name: "user".into(), uid: 4242, gid: 4242 };
        let args = ["executord", "--run-dir", home.path().to_str().unwrap()];
        let args = <crate::cli::Args as clap::Parser>::parse_from(args);
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
        assert!(listened > 0, "the control: some starts went well");
        let _ = std::fs::remove_file(&socket);
        let listener = runtime(&config, &user, true);
        let meta = socket.metadata().unwrap();
        assert_eq!((meta.uid(), meta.mode() & 0o777, listener.is_some()), (4242, 0o666, true));
    }
}
