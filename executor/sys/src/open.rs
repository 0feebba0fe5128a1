//! Opens files below a directory. Symbolic links and `..` cannot lead out of it.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use rustix::path::Arg;

/// Handling of symbolic links by [`open_beneath`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Refuse symbolic links in every component.
    Refused,
    /// Follow symbolic links that do not lead out of the directory.
    Beneath,
}

/// Reads a whole file of at most `bytes_max` bytes.
///
/// # Errors
/// Returns an error that names the limit (`InvalidData`) if the file is longer, and otherwise the errors of read.
pub fn read_whole(file: impl Read, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("has more than {bytes_max} bytes")));
    }
    Ok(bytes)
}

/// Calls openat2, and repeats the call while the kernel requests a retry, which it does if a rename raced with the
/// lookup. The descriptor is close-on-exec.
///
/// # Errors
/// Returns the errors of openat2.
pub fn open_resolved(
    dir: BorrowedFd<'_>,
    path: impl Arg + Copy,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    loop {
        match openat2(dir, path, flags | OFlags::CLOEXEC, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
}

/// Opens an existing file beneath a directory. In a sandbox without openat2, no symbolic link is followed. The daemon's
/// unit is such a sandbox, because its filter cannot inspect the arguments of openat2 (systemd's RestrictSUIDSGID).
///
/// # Errors
/// Returns `EXDEV` if the path leads out of the directory, `ELOOP` or `ENOTDIR` for a symbolic link that is not
/// followed, and otherwise the errors of open.
pub fn open_beneath(dir: BorrowedFd<'_>, path: &Path, flags: OFlags, links: Links) -> Result<OwnedFd, Errno> {
    let links = match links {
        Links::Refused => ResolveFlags::NO_SYMLINKS,
        Links::Beneath => ResolveFlags::empty(),
    };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | links;
    match open_resolved(dir, path, flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS) => open_without_links(dir, path, flags),
        opened => opened,
    }
}

/// Opens a file component by component, without following any link.
fn open_without_links(dir: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::CurDir => {}
            _ => return Err(Errno::XDEV),
        }
    }
    let (last, above) = names.split_last().ok_or(Errno::NOENT)?;
    let open = |dir: BorrowedFd<'_>, name: &OsStr, flags: OFlags| {
        openat(dir, name.as_bytes(), flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
    };
    let mut at = dir.try_clone_to_owned().map_err(|_| Errno::MFILE)?;
    for name in above {
        at = open(at.as_fd(), name, OFlags::PATH | OFlags::DIRECTORY)?;
    }
    open(at.as_fd(), last, flags)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn longer_file_is_refused() {
        assert_eq!(read_whole(&b"four"[..], 4).unwrap(), b"four");
        let error = read_whole(&b"fives"[..], 4).unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (io::ErrorKind::InvalidData, "has more than 4 bytes".to_owned()));
        assert!(read_whole(io::empty(), 0).unwrap().is_empty());
    }

    /// With and without openat2, only files beneath the directory are opened. Without openat2, no link is followed.
    #[test]
    fn opened_files_lie_beneath() {
        let home = tempfile::tempdir().unwrap();
        let inside = home.path().join("in");
        std::fs::create_dir_all(inside.join("a/b")).unwrap();
        std::fs::write(inside.join("a/b/c"), "content").unwrap();
        std::fs::write(home.path().join("outside"), "").unwrap();
        for (link, target) in [("out", "../outside"), ("etc", "/etc"), ("within", "a/b/c"), ("dir", "a")] {
            std::os::unix::fs::symlink(target, inside.join(link)).unwrap();
        }
        let dir = File::open(&inside).unwrap();
        let dir = dir.as_fd();
        let read = |opened: Result<OwnedFd, Errno>| opened.map(|file| io::read_to_string(File::from(file)).unwrap());
        let following = |path: &str| read(open_beneath(dir, Path::new(path), OFlags::RDONLY, Links::Beneath));
        let refusing = |path: &str| read(open_beneath(dir, Path::new(path), OFlags::RDONLY, Links::Refused));
        let stepwise = |path: &str| read(open_without_links(dir, Path::new(path), OFlags::RDONLY));
        for open in [&following as &dyn Fn(&str) -> Result<String, Errno>, &refusing, &stepwise] {
            assert_eq!(open("a/b/c").as_deref(), Ok("content"));
            assert_eq!(open("a/none"), Err(Errno::NOENT));
            for path in ["../outside", "a/../../outside", "out", "etc/passwd", "..", "", "/etc/passwd"] {
                assert!(open(path).is_err(), "{path}");
            }
        }
        for path in ["within", "dir/b/c"] {
            assert_eq!(following(path).as_deref(), Ok("content"), "{path}");
            assert!(refusing(path).is_err() && stepwise(path).is_err(), "{path}");
        }
    }
}
