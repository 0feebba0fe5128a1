//! Opens files below a directory. Symbolic links and `..` cannot escape the directory.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2, readlinkat};
use rustix::io::Errno;
use rustix::path::Arg;

/// Handling of symbolic links by [`open_beneath`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Refuse symbolic links in every component.
    Refused,
    /// Follow symbolic links that do not escape the directory.
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
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("the file has more than {bytes_max} bytes")));
    }
    Ok(bytes)
}

/// Calls openat2, and repeats the call while the kernel requests a retry. The kernel requests a retry if a rename raced
/// with the lookup. The descriptor is close-on-exec.
///
/// # Errors
/// Returns the kernel's error if openat2 fails.
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

/// Opens an existing file beneath a directory, even in a sandbox without openat2. The daemon's unit is such a sandbox,
/// because its filter cannot inspect the arguments of openat2 (systemd's RestrictSUIDSGID).
///
/// # Errors
/// Returns `EXDEV` if the path escapes the directory, `ELOOP` for a symbolic link that is not followed or for too
/// many of them, and otherwise the errors of open.
pub fn open_beneath(dir: BorrowedFd<'_>, path: &Path, flags: OFlags, links: Links) -> Result<OwnedFd, Errno> {
    let refused = match links {
        Links::Refused => ResolveFlags::NO_SYMLINKS,
        Links::Beneath => ResolveFlags::empty(),
    };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | refused;
    match open_resolved(dir, path, flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS) => open_stepwise(dir, path, flags, links),
        opened => opened,
    }
}

/// Maximum number of symbolic links of a path, as in the kernel.
const LINKS_MAX: usize = 40;
/// Maximum number of directories that are open at the same time.
const DEPTH_MAX: usize = 256;

/// Opens a file component by component. All directories on the way stay open, so `..` leads to the directory that the
/// walk came from, even if directories are moved during the walk.
fn open_stepwise(dir: BorrowedFd<'_>, path: &Path, flags: OFlags, links: Links) -> Result<OwnedFd, Errno> {
    let mut left = Vec::new();
    push_reversed(&mut left, path)?;
    if left.is_empty() {
        return Err(Errno::NOENT);
    }
    let (mut above, mut followed) = (Vec::<OwnedFd>::new(), 0);
    while let Some(name) = left.pop() {
        if name == ".." {
            above.pop().ok_or(Errno::XDEV)?;
            continue;
        }
        let at = above.last().map_or(dir, |last| last.as_fd());
        match readlinkat(at, name.as_bytes(), Vec::new()) {
            Ok(_) if links == Links::Refused || followed == LINKS_MAX => return Err(Errno::LOOP),
            Ok(target) => {
                followed += 1;
                push_reversed(&mut left, Path::new(OsStr::from_bytes(target.as_bytes())))?;
            }
            // EINVAL: the entry is not a link. If the entry has become a link since then, opening it fails.
            Err(Errno::INVAL) if left.is_empty() => return open_entry(at, &name, flags),
            Err(Errno::INVAL) if above.len() == DEPTH_MAX => return Err(Errno::NAMETOOLONG),
            Err(Errno::INVAL) => above.push(open_entry(at, &name, OFlags::PATH | OFlags::DIRECTORY)?),
            Err(error) => return Err(error),
        }
    }
    // The last component was `..`, or a link to a directory above.
    open_entry(above.last().map_or(dir, |last| last.as_fd()), OsStr::new("."), flags)
}

fn open_entry(dir: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    openat(dir, name.as_bytes(), flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Adds the components of a path, the last component first.
///
/// # Errors
/// Returns `EXDEV` if the path is absolute.
fn push_reversed(components: &mut Vec<OsString>, path: &Path) -> Result<(), Errno> {
    for component in path.components().rev() {
        match component {
            Component::Normal(name) => components.push(name.to_owned()),
            Component::ParentDir => components.push("..".into()),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return Err(Errno::XDEV),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn longer_file_is_refused() {
        assert_eq!(read_whole(&b"four"[..], 4).unwrap(), b"four");
        let error = read_whole(&b"fives"[..], 4).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string()),
            (io::ErrorKind::InvalidData, "the file has more than 4 bytes".to_owned())
        );
        assert!(read_whole(io::empty(), 0).unwrap().is_empty());
    }

    /// With and without openat2, only files beneath the directory are opened, and the same links are followed.
    #[test]
    fn opened_files_lie_beneath() {
        let home = tempfile::tempdir().unwrap();
        let inside = home.path().join("in");
        std::fs::create_dir_all(inside.join("a/b")).unwrap();
        std::fs::write(inside.join("a/b/c"), "content").unwrap();
        std::fs::write(home.path().join("outside"), "").unwrap();
        let links = [
            ("out", "../outside"),
            ("a/out", "../../outside"),
            ("etc", "/etc"),
            ("self", "self"),
            ("within", "a/b/c"),
            ("dir", "a"),
            ("a/up", "../a/./b"),
            ("a/top", ".."),
            ("chain", "dir/up/c"),
        ];
        for (link, target) in links {
            std::os::unix::fs::symlink(target, inside.join(link)).unwrap();
        }
        let dir = File::open(&inside).unwrap();
        let dir = dir.as_fd();
        let read = |opened: Result<OwnedFd, Errno>| opened.map(|file| io::read_to_string(File::from(file)).unwrap());
        let by_kernel = |path: &str, links| read(open_beneath(dir, Path::new(path), OFlags::RDONLY, links));
        let stepwise = |path: &str, links| read(open_stepwise(dir, Path::new(path), OFlags::RDONLY, links));
        for open in [&by_kernel as &dyn Fn(&str, Links) -> Result<String, Errno>, &stepwise] {
            for links in [Links::Refused, Links::Beneath] {
                assert_eq!(open("a/b/c", links).as_deref(), Ok("content"));
                assert_eq!(open("a/../a/b/c", links).as_deref(), Ok("content"));
                assert_eq!(open("a/none", links), Err(Errno::NOENT));
                assert_eq!(open("a/b/c/d", links), Err(Errno::NOTDIR));
                for path in ["../outside", "a/../../outside", "..", "a/../..", "", "/etc/passwd"] {
                    assert!(open(path, links).is_err(), "{path}");
                }
            }
            for path in ["within", "dir/b/c", "a/up/c", "a/top/a/b/c", "chain"] {
                assert_eq!(open(path, Links::Beneath).as_deref(), Ok("content"), "{path}");
                assert_eq!(open(path, Links::Refused), Err(Errno::LOOP), "{path}");
            }
            for (path, error) in
                [("out", Errno::XDEV), ("a/out", Errno::XDEV), ("etc/passwd", Errno::XDEV), ("self", Errno::LOOP)]
            {
                assert_eq!(open(path, Links::Beneath), Err(error), "{path}");
            }
        }
        let is_dir = |opened: OwnedFd| File::from(opened).metadata().unwrap().is_dir();
        for path in ["a/top", "a/b/.."] {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            assert!(is_dir(open_stepwise(dir, Path::new(path), flags, Links::Beneath).unwrap()), "{path}");
        }
        let deep = "a/".repeat(DEPTH_MAX + 2);
        let mut at = inside;
        for _ in 0..DEPTH_MAX + 1 {
            at.push("a");
        }
        std::fs::create_dir_all(&at).unwrap();
        assert_eq!(stepwise(&deep, Links::Beneath), Err(Errno::NAMETOOLONG));
    }
}
