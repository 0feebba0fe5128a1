//! Chooses the destination of fetched files by the rules of cp, and writes the files.
//!
//! File names come from a container and are not trusted: nothing is written outside the destination. Each path
//! component is opened separately, symbolic links are not followed, and a path outside the requested path is an error.
//! Until a file is complete, it has a temporary name. If fetching fails, the temporary file is removed.

mod tree;

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use crate::failure::Failure;
use crate::text::plain;

pub use tree::{Partial, Tree};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// A single file, by its path.
    File(&'a str),
    Directory(&'a str),
    Everything,
}

/// File type of the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    Nothing,
    File,
    Directory,
    /// A device, a pipe, or a link to something other than a directory.
    Other,
}

/// Directory and name that fetched files are written to.
#[derive(Debug, PartialEq, Eq)]
pub struct Place {
    /// Directory that all files are written below.
    pub directory: PathBuf,
    /// True if a missing directory is created.
    pub make: bool,
    /// Name of the file or copied directory below `directory`. `None` if files are written directly into `directory`.
    pub name: Option<OsString>,
}

/// Errors from writing fetched files.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("{} {why}", plain(&.path.display().to_string()))]
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
    /// Returns true if all other writes would fail too, because the disk or the quota is full or the file system is
    /// read-only.
    pub fn affects_all_writes(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        let Self::Io { source, .. } = self else { return false };
        matches!(source.kind(), QuotaExceeded | ReadOnlyFilesystem | StorageFull)
    }

    /// Returns the reason of the error, without the path.
    pub fn why(&self) -> String {
        match self {
            Self::Refused { why, .. } => (*why).to_owned(),
            Self::Io { source, .. } => source.to_string(),
        }
    }
}

/// Returns the file type of a copy's destination.
pub fn at(destination: &Path) -> Result<TargetKind, WriteError> {
    there(destination).map_err(|source| WriteError::Io { path: destination.to_owned(), source })
}

/// Returns the file type of a path. A link to a directory counts as a directory, as in cp.
fn there(path: &Path) -> io::Result<TargetKind> {
    let meta = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(TargetKind::Nothing),
        meta => meta?,
    };
    Ok(match meta.file_type() {
        kind if kind.is_file() => TargetKind::File,
        kind if kind.is_dir() || (kind.is_symlink() && path.is_dir()) => TargetKind::Directory,
        _ => TargetKind::Other,
    })
}

/// Returns the place to which cp would write `source`, for a destination of the file type `there`.
pub fn place(source: Source<'_>, destination: &Path, there: TargetKind) -> Result<Place, WriteError> {
    let refused = |why| Err(WriteError::Refused { path: destination.to_owned(), why });
    let own_name = |path: &str| path.rsplit('/').next().map(OsString::from);
    let slash = destination.as_os_str().as_encoded_bytes().ends_with(b"/");
    match (source, there) {
        (_, TargetKind::Other) => refused("is neither a regular file nor a directory; `-` is standard output"),
        (Source::File(path) | Source::Directory(path), TargetKind::Directory) => {
            Ok(Place { directory: destination.to_owned(), make: false, name: own_name(path) })
        }
        (Source::Everything, TargetKind::Directory) => {
            Ok(Place { directory: destination.to_owned(), make: false, name: None })
        }
        (Source::Directory(_) | Source::Everything, TargetKind::Nothing) => {
            Ok(Place { directory: destination.to_owned(), make: true, name: None })
        }
        (Source::Directory(_) | Source::Everything, TargetKind::File) => refused("is a file, not a directory"),
        (Source::File(_), TargetKind::Nothing) if slash => refused("is not an existing directory"),
        (Source::File(_), TargetKind::Nothing | TargetKind::File) => {
            let parent = destination.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            match destination.file_name() {
                Some(name) => Ok(Place { directory: parent.to_owned(), make: false, name: Some(name.to_owned()) }),
                None => refused("has no file name"),
            }
        }
    }
}

/// Returns the path relative to `prefix`, if it consists of plain names only.
pub fn below(prefix: &str, path: &str) -> Option<PathBuf> {
    let relative = path.strip_prefix(prefix)?.strip_prefix('/')?;
    let plain = !relative.contains('\0')
        && relative.split('/').all(|name| !matches!(name, "" | "." | ".."))
        && Path::new(relative).components().all(|component| matches!(component, Component::Normal(_)));
    plain.then(|| PathBuf::from(relative))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn cp_destination_follows_rules() {
        use TargetKind::{Directory, File, Nothing, Other};
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

    /// A path that is not below the prefix is rejected. A correct executord never sends such a path.
    #[test]
    fn path_outside_prefix_is_rejected() {
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
    fn kinds_of_destinations() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("in")).unwrap();
        fs::write(home.path().join("in/file"), "x").unwrap();
        symlink(home.path().join("in"), home.path().join("alias")).unwrap();
        symlink(home.path().join("in/file"), home.path().join("link")).unwrap();
        let kinds = [
            ("in", TargetKind::Directory),
            ("alias", TargetKind::Directory),
            ("in/file", TargetKind::File),
            ("link", TargetKind::Other),
            ("none", TargetKind::Nothing),
        ];
        for (name, kind) in kinds {
            assert_eq!(there(&home.path().join(name)).unwrap(), kind, "{name}");
        }
        assert_eq!(there(Path::new("/dev/null")).unwrap(), TargetKind::Other);
    }
}
