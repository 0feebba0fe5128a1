//! Writes fetched files below a directory. Each path is opened relative to a file descriptor, so a name chosen by a
//! container cannot escape the directory.
//!
//! `executor_sys::replace` and `executor_cnab::store` also replace files atomically, but only files whose names no
//! container chooses.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, fchmod, futimens, linkat, mkdirat, openat, renameat, symlinkat,
    unlinkat,
};

use super::{Place, WriteError};

/// The root directory of the written files.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
    shown: PathBuf,
}

/// An unfinished file, removed on drop.
#[derive(Debug)]
pub struct Partial {
    directory: OwnedFd,
    partial: String,
    name: OsString,
    file: File,
    /// Current length of the file in bytes, including holes.
    length: u64,
    shown: PathBuf,
    finished: bool,
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Tree {
    /// Opens the directory that a destination names, and creates it if requested.
    pub fn open(place: &Place) -> Result<Self, WriteError> {
        let shown = place.directory.clone();
        let failed = |source: io::Error| WriteError::Io { path: shown.clone(), source };
        if place.make {
            match fs::create_dir(&shown) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made.map_err(failed)?,
            }
        }
        let root = openat(CWD, &shown, DIRECTORY, Mode::empty()).map_err(|error| failed(error.into()))?;
        Ok(Self { root, shown })
    }

    /// Creates a directory and its parents.
    pub fn directory(&self, path: &Path) -> Result<OwnedFd, WriteError> {
        let failed = |error: rustix::io::Errno| WriteError::Io { path: self.shown.join(path), source: error.into() };
        let mut directory = openat(&self.root, ".", DIRECTORY, Mode::empty()).map_err(failed)?;
        for name in path.components().map(Component::as_os_str) {
            match mkdirat(&directory, name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(failed(error)),
            }
            let next = openat(&directory, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
            directory = next.map_err(|error| match error {
                rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR => WriteError::Refused {
                    path: self.shown.join(path),
                    why: "exists and is not a directory, or is a link",
                },
                error => failed(error),
            })?;
        }
        Ok(directory)
    }

    /// Creates a symbolic link, replacing an existing file that is not a directory.
    pub fn symlink(&self, path: &Path, target: &Path) -> Result<(), WriteError> {
        self.linked(path, |directory, name| symlinkat(target, directory, name))
    }

    /// Creates a hard link to `of`, a file below the same root. Replaces an existing file like [`Self::symlink`].
    pub fn hard_link(&self, path: &Path, of: &Path) -> Result<(), WriteError> {
        let shown = self.shown.join(of);
        let name = of.file_name().ok_or(WriteError::Refused { path: shown, why: "has no file name" })?;
        let there = self.directory(of.parent().unwrap_or(Path::new("")))?;
        self.linked(path, |directory, new| linkat(&there, name, directory, new, AtFlags::empty()))
    }

    fn linked(
        &self,
        path: &Path,
        link: impl FnOnce(&OwnedFd, &str) -> Result<(), rustix::io::Errno>,
    ) -> Result<(), WriteError> {
        let shown = self.shown.join(path);
        let failed = |error: rustix::io::Errno| WriteError::Io { path: shown.clone(), source: error.into() };
        let name = path.file_name().ok_or(WriteError::Refused { path: shown.clone(), why: "has no file name" })?;
        let directory = self.directory(path.parent().unwrap_or(Path::new("")))?;
        let partial = partial_name();
        link(&directory, &partial).map_err(failed)?;
        let renamed = renameat(&directory, &*partial, &directory, name);
        let _ = unlinkat(&directory, &*partial, AtFlags::empty()); // rename(2) keeps both links to one inode
        renamed.map_err(failed)
    }

    /// Sets a directory's permissions, without set-id bits, and its modification time (seconds since the epoch).
    pub fn mark(&self, path: &Path, mode: u32, mtime: u64) -> Result<(), WriteError> {
        let directory = self.directory(path)?;
        futimens(&directory, &changed_at(mtime))
            .and_then(|()| fchmod(&directory, Mode::from_raw_mode(mode & 0o1777)))
            .map_err(|error| WriteError::Io { path: self.shown.join(path), source: error.into() })
    }

    /// Creates a file with a temporary name. [`Partial::finish`] renames the file to `path`. `path` must be a single
    /// name or come from `below`.
    pub fn file(&self, path: &Path, mode: u32) -> Result<Partial, WriteError> {
        let shown = self.shown.join(path);
        let name = path.file_name().ok_or(WriteError::Refused { path: shown.clone(), why: "has no file name" })?;
        let directory = self.directory(path.parent().unwrap_or(Path::new("")))?;
        let partial = partial_name();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Create the file without set-user-id bits, and subject to the umask.
        let file = openat(&directory, &partial, flags, Mode::from_raw_mode(mode & 0o777))
            .map_err(|error| WriteError::Io { path: shown.clone(), source: error.into() })?;
        Ok(Partial { directory, partial, name: name.to_owned(), file: file.into(), length: 0, shown, finished: false })
    }
}

fn changed_at(seconds: u64) -> Timestamps {
    let at = Timespec { tv_sec: i64::try_from(seconds).unwrap_or(i64::MAX), tv_nsec: 0 };
    Timestamps { last_access: at, last_modification: at }
}

/// Returns a temporary name for an unfinished file.
fn partial_name() -> String {
    format!(".agent-cli-{}.part", uuid::Uuid::new_v4().simple())
}

impl Partial {
    /// Sets the permissions, regardless of the umask but without set-user-id bits, and the modification time (seconds
    /// since the epoch).
    pub fn mark(&self, mode: u32, mtime: u64) -> Result<(), WriteError> {
        futimens(&self.file, &changed_at(mtime))
            .and_then(|()| fchmod(&self.file, Mode::from_raw_mode(mode & 0o777)))
            .map_err(|error| WriteError::Io { path: self.shown.clone(), source: error.into() })
    }

    pub fn shown(&self) -> &Path {
        &self.shown
    }

    /// Appends bytes. A piece of zeros becomes a hole, so that sparse files stay sparse.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let written = match bytes.iter().all(|byte| *byte == 0) {
            // Extend the file now, because a later change of the length would change the time set by `mark`.
            true => self.file.set_len(self.length + bytes.len() as u64),
            false => self.file.write_all_at(bytes, self.length),
        };
        self.length += bytes.len() as u64;
        written.map_err(|source| WriteError::Io { path: self.shown.clone(), source })
    }

    /// Renames the file to its final name, replacing an existing file.
    pub fn finish(mut self) -> Result<(), WriteError> {
        renameat(&self.directory, &self.partial, &self.directory, &self.name)
            .map_err(|error| WriteError::Io { path: self.shown.clone(), source: error.into() })?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.finished {
            let _ = unlinkat(&self.directory, &self.partial, AtFlags::empty()); // on failure a hidden file remains
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn destination_files_are_written_atomically() {
        let home = tempfile::tempdir().unwrap();
        let tree = Tree::open(&Place { directory: home.path().join("new"), make: true, name: None }).unwrap();
        let names = || -> Vec<_> { fs::read_dir(home.path().join("new")).unwrap().flatten().collect() };
        let mut file = tree.file(Path::new("a"), 0o4755).unwrap();
        file.write(b"half").unwrap();
        assert_eq!(names().len(), 1);
        drop(file);
        assert_eq!(names().len(), 0);
        fs::write(home.path().join("new/a"), "old and longer").unwrap();
        let mut file = tree.file(Path::new("a"), 0o4400).unwrap();
        file.write(b"whole").unwrap();
        assert_eq!(fs::read(home.path().join("new/a")).unwrap(), b"old and longer");
        file.finish().unwrap();
        assert_eq!((fs::read(home.path().join("new/a")).unwrap(), names().len()), (b"whole".to_vec(), 1));
        let mode = fs::metadata(home.path().join("new/a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o400, "no set-user-id");
    }

    /// Links below the destination are not followed; the destination itself may be a link.
    #[test]
    fn no_link_is_followed_below_the_destination() {
        let home = tempfile::tempdir().unwrap();
        let (inside, outside) = (home.path().join("in"), home.path().join("out"));
        fs::create_dir(&inside).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), "kept").unwrap();
        symlink(&outside, inside.join("dir")).unwrap();
        symlink(outside.join("precious"), inside.join("file")).unwrap();
        symlink(&inside, home.path().join("alias")).unwrap();
        let tree = Tree::open(&Place { directory: home.path().join("alias"), make: false, name: None }).unwrap();
        assert!(matches!(tree.file(Path::new("dir/x"), 0o644), Err(WriteError::Refused { .. })));
        let mut file = tree.file(Path::new("file"), 0o644).unwrap();
        file.write(b"new").unwrap();
        file.finish().unwrap();
        assert!(inside.join("file").symlink_metadata().unwrap().is_file(), "the link was replaced");
        assert_eq!(fs::read(outside.join("precious")).unwrap(), b"kept");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    }
}
