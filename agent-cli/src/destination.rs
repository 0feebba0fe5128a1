//! Destinations of fetched files, by the rules of cp, and the writing of the files.
//!
//! File names come from a container and are not trusted: nothing is written outside the destination. Each component is
//! opened by itself, no symbolic link is followed, and a path that is not below the requested one is an error. A file
//! appears under its name when it is complete; before that it has a temporary name, which is removed when the fetching
//! breaks off.

mod tree;

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use crate::failure::Failure;
use crate::text::plain;

pub use tree::{Partial, Tree};

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
pub enum TargetKind {
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
pub fn at(destination: &Path) -> Result<TargetKind, WriteError> {
    there(destination).map_err(|source| WriteError::Io { path: destination.to_owned(), source })
}

/// Returns the kind of what is at a path. A link to a directory counts as a directory, as for cp.
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

/// The rules.
pub fn place(source: Source<'_>, destination: &Path, there: TargetKind) -> Result<Place, WriteError> {
    let refused = |why| Err(WriteError::Refused { path: destination.to_owned(), why });
    let own_name = |path: &str| path.rsplit('/').next().map(OsString::from);
    let slash = destination.as_os_str().as_encoded_bytes().ends_with(b"/");
    match (source, there) {
        (_, TargetKind::Other) => refused("is neither a file nor a directory; `-` is standard output"),
        (Source::File(path) | Source::Directory(path), TargetKind::Directory) => {
            Ok(Place { directory: destination.to_owned(), make: false, name: own_name(path) })
        }
        (Source::Everything, TargetKind::Directory) => {
            Ok(Place { directory: destination.to_owned(), make: false, name: None })
        }
        (Source::Directory(_) | Source::Everything, TargetKind::Nothing) => {
            Ok(Place { directory: destination.to_owned(), make: true, name: None })
        }
        (Source::Directory(_) | Source::Everything, TargetKind::File) => refused("is a file, and not a directory"),
        (Source::File(_), TargetKind::Nothing) if slash => refused("is not a directory"),
        (Source::File(_), TargetKind::Nothing | TargetKind::File) => {
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn cp_s_rules() {
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
