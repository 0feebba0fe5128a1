//! The socket that clients connect to: made here, or passed by systemd.

use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use executor_sys::startup::forget_variables;
use listenfd::ListenFd;

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
            let listener = UnixListener::bind(&config.listen).map_err(failed("listen on"))?;
            let group = group.unwrap_or(account.gid);
            let owner = root.then_some(account.uid);
            chown(&config.listen, owner, Some(group)).map_err(failed("change the owner of"))?;
            let mode = std::fs::Permissions::from_mode(0o660);
            std::fs::set_permissions(&config.listen, mode).map_err(failed("set the mode of"))?;
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
        let failed = |what| move |source| BootError::Path { what, path: config.paths.runtime_socket(), source };
        remove_stale(&path)?;
        let listener = UnixListener::bind(&path).map_err(failed("listen on"))?;
        if root {
            chown(&path, Some(account.uid), Some(account.gid)).map_err(failed("change the owner of"))?;
        }
        let mode = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(&path, mode).map_err(failed("set the mode of"))?;
        listener.set_nonblocking(true).map_err(failed("listen on"))?;
        Ok(listener)
    };
    match listen() {
        Ok(listener) => Some(listener),
        Err(error) => {
            let error = crate::chain(&error);
            tracing::warn!(error, "containers cannot ask for their secrets: there is no runtime socket");
            None
        }
    }
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
        return Err(failed("listen on")(std::io::Error::new(ErrorKind::AlreadyExists, "it exists and is no socket")));
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
}
