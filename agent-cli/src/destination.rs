//! Destinations of fetched files, by the rules of cp, and the writing of the files.
//!
//! File names come from a container and are not trusted: nothing is written outside the destination. Each component is
//! opened by itself, no symbolic link is followed, and a path that is not below the requested one is an error. A file
//! appears under its name when it is complete; before that it has a temporary name, which is removed when the fetching
//! breaks off.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, fchmod, futimens, linkat, mkdirat, openat, renameat, symlinkat,
    unlinkat,
};

use crate::failure::Failure;
use crate::text::plain;

/// Source of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// A single file, by its path.
    File(&'a str),
    /// The contents of a directory.
    Directory(&'a str),
    /// Every output.
    Everything,
}

/// Kind of the destination, as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum There {
    Nothing,
    File,
    Directory,
    /// A device, a pipe, a link to no directory.
    Other,
}

/// Place of fetched files.
#[derive(Debug, PartialEq, Eq)]
pub struct Place {
    /// The directory that everything is written below.
    pub directory: PathBuf,
    /// The directory is made if it does not exist.
    pub make: bool,
    /// Name below the directory of the file, or of the copied directory, if it gets one of its own.
    pub name: Option<OsString>,
}

/// Errors of writing fetched files.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("{}: {why}", plain(&.path.display().to_string()))]
    Refused { path: PathBuf, why: &'static str },
    #[error("cannot write {}", plain(&.path.display().to_string()))]
    Io { path: PathBuf, source: io::Error },
}

impl From<WriteError> for Failure {
    fn from(error: WriteError) -> Self {
        Self::wrap(error, crate::exit::OURS)
    }
}

impl WriteError {
    /// Tells whether every other write would fail, too: no room, or a read-only file system.
    pub fn is_of_all(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        let Self::Io { source, .. } = self else { return false };
        matches!(source.kind(), QuotaExceeded | ReadOnlyFilesystem | StorageFull)
    }

    /// The reason, without the path.
    pub fn why(&self) -> String {
        match self {
            Self::Refused { why, .. } => (*why).to_owned(),
            Self::Io { source, .. } => source.to_string(),
        }
    }
}

/// Returns what is at the destination of a copy.
pub fn at(destination: &Path) -> Result<There, WriteError> {
    there(destination).map_err(|source| WriteError::Io { path: destination.to_owned(), source })
}

/// Returns the kind of what is at a path. A link to a directory counts as a directory, as for cp.
fn there(path: &Path) -> io::Result<There> {
    let meta = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(There::Nothing),
        meta => meta?,
    };
    Ok(match meta.file_type() {
        kind if kind.is_file() => There::File,
        kind if kind.is_dir() || (kind.is_symlink() && path.is_dir()) => There::Directory,
        _ => There::Other,
    })
}

/// The rules.
pub fn place(source: Source<'_>, destination: &Path, there: There) -> Result<Place, WriteError> {
    let refused = |why| Err(WriteError::Refused { path: destination.to_owned(), why });
    let own_name = |path: &str| path.rsplit('/').next().map(OsString::from);
    let slash = destination.as_os_str().as_encoded_bytes().ends_with(b"/");
    match (source, there) {
        (_, There::Other) => refused("is neither a file nor a directory; `-` is standard output"),
        (Source::File(path) | Source::Directory(path), There::Directory) => {
            Ok(Place { directory: destination.to_owned(), make: false, name: own_name(path) })
        }
        (Source::Everything, There::Directory) => {
            Ok(Place { directory: destination.to_owned(), make: false, name: None })
        }
        (Source::Directory(_) | Source::Everything, There::Nothing) => {
            Ok(Place { directory: destination.to_owned(), make: true, name: None })
        }
        (Source::Directory(_) | Source::Everything, There::File) => refused("is a file, and not a directory"),
        (Source::File(_), There::Nothing) if slash => refused("is not a directory"),
        (Source::File(_), There::Nothing | There::File) => {
            let parent = destination.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            match destination.file_name() {
                Some(name) => Ok(Place { directory: parent.to_owned(), make: false, name: Some(name.to_owned()) }),
                None => refused("names no file"),
            }
        }
    }
}

/// A path below the destination, made of plain names only.
pub fn below(prefix: &str, path: &str) -> Option<PathBuf> {
    let relative = path.strip_prefix(prefix)?.strip_prefix('/')?;
    let plain = !relative.contains('\0')
        && relative.split('/').all(|name| !matches!(name, "" | "." | ".."))
        && Path::new(relative).components().all(|component| matches!(component, Component::Normal(_)));
    plain.then(|| PathBuf::from(relative))
}

/// A directory that is written below.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
    shown: PathBuf,
}

/// A file on its way. Dropped, it is gone.
#[derive(Debug)]
pub struct Partial {
    directory: OwnedFd,
    partial: String,
    name: OsString,
    file: File,
    shown: PathBuf,
    finished: bool,
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Tree {
    /// Opens the directory of a place.
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

    /// Makes a directory, and those above it.
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
                    why: "something that is not a directory is in the way",
                },
                error => failed(error),
            })?;
        }
        Ok(directory)
    }

    /// Makes a symbolic link, in the place of what is there, unless that is a directory.
    pub fn symlink(&self, path: &Path, target: &Path) -> Result<(), WriteError> {
        self.linked(path, |directory, name| symlinkat(target, directory, name))
    }

    /// Makes another name of a file that was written, likewise.
    pub fn hard_link(&self, path: &Path, of: &Path) -> Result<(), WriteError> {
        let shown = self.shown.join(of);
        let name = of.file_name().ok_or(WriteError::Refused { path: shown, why: "names no file" })?;
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
        let name = path.file_name().ok_or(WriteError::Refused { path: shown.clone(), why: "names no file" })?;
        let directory = self.directory(path.parent().unwrap_or(Path::new("")))?;
        let partial = partial_name();
        link(&directory, &partial).map_err(failed)?;
        let renamed = renameat(&directory, &*partial, &directory, name);
        let _ = unlinkat(&directory, &*partial, AtFlags::empty()); // two names of one file are left alone by a rename
        renamed.map_err(failed)
    }

    /// Gives a directory its permissions, but no set-id bits, and the time of its last change (seconds since the epoch).
    pub fn mark(&self, path: &Path, mode: u32, mtime: u64) -> Result<(), WriteError> {
        let directory = self.directory(path)?;
        futimens(&directory, &changed_at(mtime))
            .and_then(|()| fchmod(&directory, Mode::from_raw_mode(mode & 0o1777)))
            .map_err(|error| WriteError::Io { path: self.shown.join(path), source: error.into() })
    }

    /// Begins a file. `path` is one that [`below`] gave, or a single name.
    pub fn file(&self, path: &Path, mode: u32) -> Result<Partial, WriteError> {
        let shown = self.shown.join(path);
        let name = path.file_name().ok_or(WriteError::Refused { path: shown.clone(), why: "names no file" })?;
        let directory = self.directory(path.parent().unwrap_or(Path::new("")))?;
        let partial = partial_name();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // No set-user-id bits, and what the umask here leaves.
        let file = openat(&directory, &partial, flags, Mode::from_raw_mode(mode & 0o777))
            .map_err(|error| WriteError::Io { path: shown.clone(), source: error.into() })?;
        Ok(Partial { directory, partial, name: name.to_owned(), file: file.into(), shown, finished: false })
    }
}

fn changed_at(seconds: u64) -> Timestamps {
    let at = Timespec { tv_sec: i64::try_from(seconds).unwrap_or(i64::MAX), tv_nsec: 0 };
    Timestamps { last_access: at, last_modification: at }
}

/// A temporary name, for a file until it is complete.
fn partial_name() -> String {
    format!(".agent-cli-{}.part", uuid::Uuid::new_v4().simple())
}

impl Partial {
    /// Gives it all of its permissions, whatever the umask here says, but no set-user-id bits, and the time of its last
    /// change (seconds since the epoch).
    pub fn mark(&self, mode: u32, mtime: u64) -> Result<(), WriteError> {
        futimens(&self.file, &changed_at(mtime))
            .and_then(|()| fchmod(&self.file, Mode::from_raw_mode(mode & 0o777)))
            .map_err(|error| WriteError::Io { path: self.shown.clone(), source: error.into() })
    }

    /// Returns the final path of the file.
    pub fn shown(&self) -> &Path {
        &self.shown
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.file.write_all(bytes).map_err(|source| WriteError::Io { path: self.shown.clone(), source })
    }

    /// Gives it its name, whatever had that before.
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
            let _ = unlinkat(&self.directory, &self.partial, AtFlags::empty()); // a hidden name is all that stays
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn cp_s_rules() {
        use There::{Directory, File, Nothing, Other};
        let at = |directory: &str, make, name: Option<&str>| {
            Some(Place { directory: directory.into(), make, name: name.map(OsString::from) })
        };
        let (file, directory, all) = (Source::File("/out/a"), Source::Directory("/out/d"), Source::Everything);
        let table = [
            (file, "x", Nothing, at(".", false, Some("x"))),
            (file, "x", File, at(".", false, Some("x"))),
            (file, "y/x", File, at("y", false, Some("x"))),
            (file, "/x", Nothing, at("/", false, Some("x"))),
            (file, "x", Directory, at("x", false, Some("a"))),
            (file, "x/", Directory, at("x/", false, Some("a"))),
            (file, "x/", Nothing, None),
            (file, "..", Nothing, None),
            (file, "/dev/null", Other, None),
            (directory, "x", Nothing, at("x", true, None)),
            (directory, "x", Directory, at("x", false, Some("d"))),
            (directory, "x", File, None),
            (all, "x", Nothing, at("x", true, None)),
            (all, "x", Directory, at("x", false, None)),
            (all, "x", File, None),
            (all, "x", Other, None),
        ];
        for (source, destination, there, expected) in table {
            let found = place(source, Path::new(destination), there);
            assert_eq!(found.ok(), expected, "{source:?} to {destination} ({there:?})");
        }
    }

    /// Names that executord has no reason to send.
    #[test]
    fn a_path_that_leads_elsewhere_is_none() {
        let fine = [("/out/a", "a"), ("/out/a/b c", "a/b c"), ("/out/..a/...", "..a/..."), ("/out/\u{1b}", "\u{1b}")];
        for (path, expected) in fine {
            assert_eq!(below("/out", path).as_deref(), Some(Path::new(expected)));
        }
        assert_eq!(below("", "/etc/x").as_deref(), Some(Path::new("etc/x")));
        let bad = [
            "/out",
            "/out/",
            "/outer/a",
            "/out/..",
            "/out/../x",
            "/out/a/../../x",
            "/out/./x",
            "/out//x",
            "/out/a\0",
            "../x",
            "x",
            "",
        ];
        for path in bad {
            assert_eq!(below("/out", path), None, "{path}");
        }
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
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

    /// Links that lie below the destination lead nowhere; the destination itself may be one.
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
        let place = place(Source::Everything, &home.path().join("alias"), there(&home.path().join("alias")).unwrap());
        let tree = Tree::open(&place.unwrap()).unwrap();
        assert!(matches!(tree.file(Path::new("dir/x"), 0o644), Err(WriteError::Refused { .. })));
        let mut file = tree.file(Path::new("file"), 0o644).unwrap();
        file.write(b"new").unwrap();
        file.finish().unwrap();
        assert!(inside.join("file").symlink_metadata().unwrap().is_file(), "the link was replaced");
        assert_eq!(fs::read(outside.join("precious")).unwrap(), b"kept");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        let kinds =
            [("in", There::Directory), ("alias", There::Directory), ("in/file", There::File), ("none", There::Nothing)];
        for (name, kind) in kinds {
            assert_eq!(there(&home.path().join(name)).unwrap(), kind, "{name}");
        }
        assert_eq!(there(Path::new("/dev/null")).unwrap(), There::Other);
    }
}
