//! `directory`: files beneath a directory, such as systemd's credentials directory or a volume of secrets.
//!
//! A path is opened beneath the directory: no link leads out of it, and nothing but a regular file is read.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use executor_core::reference::{REFERENCE_VALUE_MAX, SecretReference};
use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat, openat2};
use rustix::io::Errno;

use crate::config::ProviderConfig;
use crate::files::{self, ReadError};
use crate::{ErrorKind, FetchError, Value};

/// A directory of secrets.
#[derive(Debug)]
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new(config: &ProviderConfig) -> Self {
        Self(config.path.clone().unwrap_or_default())
    }

    /// Reads a file. A thread waits for the disk.
    pub(crate) async fn read(&self, reference: &SecretReference) -> Result<Value, FetchError> {
        let (dir, path) = (self.0.clone(), reference.path.clone());
        let read = tokio::task::spawn_blocking(move || {
            let content = read(&dir, &path);
            executor_secrets::scrub_stack();
            content
        });
        read.await.map_err(|error| FetchError::unavailable(error.to_string()))?
    }
}

fn read(dir: &Path, path: &str) -> Result<Value, FetchError> {
    let shown = dir.display();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = open(dir, flags, Mode::empty());
    let dir = opened.map_err(|error| FetchError::unavailable(format!("cannot open {shown}: {}", plain(error))))?;
    let file = open_beneath(&dir, path).map_err(|error| match error {
        Errno::NOENT | Errno::NOTDIR => {
            FetchError::new(ErrorKind::NotFound, format!("there is no such file in {shown}"))
        }
        Errno::XDEV | Errno::LOOP => {
            FetchError::new(ErrorKind::Denied, format!("a symbolic link on the way leads out of {shown}"))
        }
        Errno::ACCESS | Errno::PERM => {
            FetchError::new(ErrorKind::Denied, format!("executord may not read the file in {shown}"))
        }
        error => FetchError::unavailable(format!("cannot open the file in {shown}: {}", plain(error))),
    })?;
    let content = files::read(&File::from(file), REFERENCE_VALUE_MAX).map_err(|error| match error {
        ReadError::NotRegular => FetchError::new(ErrorKind::Unsuitable, "is not a regular file"),
        ReadError::TooLarge => FetchError::too_large(),
        ReadError::Io(error) => FetchError::unavailable(format!("cannot read the file in {shown}: {error}")),
    })?;
    Ok(Value { content, version: String::new(), lease: None })
}

fn plain(error: Errno) -> String {
    let text = std::io::Error::from(error).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Opens a file beneath a directory.
fn open_beneath(dir: &OwnedFd, path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match openat2(dir, path, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS) {
        // As in the sandbox of the daemon's unit, where no filter can look into its arguments (systemd's RestrictSUIDSGID).
        Err(Errno::NOSYS) => open_without_links(dir, path, flags),
        opened => opened,
    }
}

/// Opens a file component by component, without following any link.
fn open_without_links(dir: &OwnedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let (above, last) = path.rsplit_once('/').map_or((None, path), |(above, last)| (Some(above), last));
    let mut at = dir.try_clone().map_err(|_| Errno::MFILE)?;
    for name in above.into_iter().flat_map(|above| above.split('/')) {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        at = openat(&at, name, flags, Mode::empty())?;
    }
    openat(&at, last, flags | OFlags::NOFOLLOW, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn nothing_outside_of_the_directory_is_read() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("in");
        std::fs::create_dir_all(dir.join("a")).unwrap();
        std::fs::write(dir.join("a/b"), b"value").unwrap();
        std::fs::write(home.path().join("out"), b"canary").unwrap();
        std::fs::write(dir.join("large"), vec![b'x'; REFERENCE_VALUE_MAX + 1]).unwrap();
        std::fs::write(dir.join("full"), vec![b'x'; REFERENCE_VALUE_MAX]).unwrap();
        symlink("../out", dir.join("link")).unwrap();
        symlink("/proc/self/environ", dir.join("absolute")).unwrap();
        symlink("a/b", dir.join("within")).unwrap();
        let of = |path: &str| read(&dir, path).map(|value| value.content.to_vec());
        assert_eq!(of("a/b").unwrap(), b"value");
        assert_eq!(of("within").unwrap(), b"value");
        assert_eq!(of("full").unwrap().len(), REFERENCE_VALUE_MAX);
        let table = [
            ("none", ErrorKind::NotFound),
            ("a/b/c", ErrorKind::NotFound),
            ("../out", ErrorKind::Denied),
            ("link", ErrorKind::Denied),
            ("absolute", ErrorKind::Denied),
            ("a", ErrorKind::Unsuitable),
            ("large", ErrorKind::Unsuitable),
        ];
        for (path, kind) in table {
            assert_eq!(of(path).unwrap_err().kind, kind, "{path}");
        }
        let dir = open(&dir, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        assert!(open_without_links(&dir, "a/b", flags).is_ok());
        assert!(open_without_links(&dir, "within", flags).is_err());
    }
}
