//! Reads bindings from a directory in the layout that Kubernetes projects.
//!
//! ```text
//! DIR/db/..data -> ..2026_01_31      DIR/..data -> ..gen3       DIR/type
//!    db/..2026_01_31/type               db -> ..data/db         DIR/password
//!    db/type -> ..data/type
//! ```
//! If a directory has a `..data` link, the directory is read through that link. The link is opened once, so all entries
//! belong to the same generation, even if the link is replaced concurrently. Links are followed, because the layout
//! consists of links. Names that begin with a dot are skipped, except `.metadata`, because SAP's readers ignore a
//! binding without it. Directories in a binding are also skipped. Any other file that is not regular is an error and is
//! not read.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use executor_bindings::{INPUT_MAX, METADATA};
use executor_cli_kit::source::bounded;
use executor_cli_kit::text::plain;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, openat, statat};
use rustix::io::Errno;
use zeroize::Zeroizing;

/// Link to the current generation, in a directory that is replaced atomically.
const CURRENT_LINK: &str = "..data";
/// Maximum number of names in all directories together.
const NAMES_MAX: usize = 20_000;
/// Name of the file that makes a directory a binding.
const TYPE: &str = "type";

/// Names and contents of a binding's entries.
pub(crate) type Entries = Vec<(String, Zeroizing<Vec<u8>>)>;

/// Errors from reading a directory as bindings.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TreeError {
    #[error("cannot read {}", plain(&.path.display().to_string()))]
    Io { path: PathBuf, source: io::Error },
    #[error("{} {why}", plain(&.path.display().to_string()))]
    Refused { path: PathBuf, why: &'static str },
    #[error(
        "{}: all bindings together exceed {INPUT_MAX} bytes or {NAMES_MAX} names",
        plain(&.path.display().to_string())
    )]
    TooLarge { path: PathBuf },
}

/// Reads the bindings in a directory, or the directory itself if it is a single binding. Returns names and entries.
pub(super) fn read(dir: &Path) -> Result<Vec<(String, Entries)>, TreeError> {
    let mut reader = Reader { bytes: INPUT_MAX, names: NAMES_MAX };
    let root = current_generation(open_dir(CWD, dir.as_os_str()).map_err(|error| failed(dir, error))?);
    if matches!(kind(&root, TYPE), Ok(FileType::RegularFile)) {
        return Ok(vec![(own_name(dir)?, reader.entries(&root, dir)?)]);
    }
    let mut tree = Vec::new();
    for name in reader.names(&root, dir)?.into_iter().filter(|name| name != METADATA) {
        let path = dir.join(&name);
        match kind(&root, &name).map_err(|error| failed(&path, error))? {
            FileType::Directory => {
                let binding = open_dir(&root, name.as_ref()).map_err(|error| failed(&path, error))?;
                let entries = reader.entries(&current_generation(binding), &path)?;
                tree.push((name, entries));
            }
            // Readers disagree about a binding without a type: some ignore it, some fail.
            _ => {
                return Err(TreeError::Refused {
                    path,
                    why: "is not a directory; a directory of bindings contains only directories, and a single binding has a file `type`",
                });
            }
        }
    }
    Ok(tree)
}

/// A reader with limits for the remaining bytes and names.
struct Reader {
    bytes: usize,
    names: usize,
}

impl Reader {
    /// Lists names in a directory, sorted. Skips names with a leading dot, except `.metadata`.
    fn names(&mut self, dir: &OwnedFd, path: &Path) -> Result<Vec<String>, TreeError> {
        let mut names = Vec::new();
        for entry in Dir::read_from(dir).map_err(|error| failed(path, error))? {
            let entry = entry.map_err(|error| failed(path, error))?;
            let name = entry.file_name().to_bytes();
            if name.starts_with(b".") && name != METADATA.as_bytes() {
                continue;
            }
            self.names = self.names.checked_sub(1).ok_or_else(|| TreeError::TooLarge { path: path.to_owned() })?;
            match std::str::from_utf8(name) {
                Ok(name) => names.push(name.to_owned()),
                Err(_) => {
                    let path = path.join(OsStr::from_bytes(name));
                    return Err(TreeError::Refused { path, why: "has a name that is not UTF-8" });
                }
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Reads the entries of a binding.
    fn entries(&mut self, dir: &OwnedFd, path: &Path) -> Result<Entries, TreeError> {
        let mut entries = Vec::new();
        for name in self.names(dir, path)? {
            let path = path.join(&name);
            // Opening a pipe must not block; its type is checked after opening.
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            let file = match openat(dir, &name, flags, Mode::empty()) {
                Err(Errno::NXIO) => return Err(TreeError::Refused { path, why: "is not a regular file" }),
                file => file.map_err(|error| failed(&path, error))?,
            };
            let stat = fstat(&file).map_err(|error| failed(&path, error))?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => {}
                FileType::Directory => continue,
                _ => return Err(TreeError::Refused { path, why: "is not a regular file" }),
            }
            let expected = usize::try_from(stat.st_size).unwrap_or(usize::MAX).min(self.bytes);
            let content = bounded(&mut File::from(file), expected, self.bytes);
            let content = content.map_err(|source| TreeError::Io { path: path.clone(), source })?;
            let content = content.ok_or(TreeError::TooLarge { path })?;
            self.bytes -= content.len();
            entries.push((name, content));
        }
        Ok(entries)
    }
}

fn failed(path: &Path, error: Errno) -> TreeError {
    TreeError::Io { path: path.to_owned(), source: error.into() }
}

fn kind(dir: &OwnedFd, name: &str) -> Result<FileType, Errno> {
    statat(dir, name, AtFlags::empty()).map(|stat| FileType::from_raw_mode(stat.st_mode))
}

fn open_dir(at: impl std::os::fd::AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    openat(at, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Returns the directory that `..data` links to; without this link, returns `dir`.
fn current_generation(dir: OwnedFd) -> OwnedFd {
    open_dir(&dir, CURRENT_LINK.as_ref()).unwrap_or(dir)
}

/// Returns the name of a directory, even if the path is `.`.
fn own_name(dir: &Path) -> Result<String, TreeError> {
    let whole = std::fs::canonicalize(dir).map_err(|source| TreeError::Io { path: dir.to_owned(), source })?;
    let name = dir.file_name().or_else(|| whole.file_name()).unwrap_or_default();
    let no_text = || TreeError::Refused { path: dir.to_owned(), why: "has a name that is not UTF-8" };
    name.to_str().map(str::to_owned).ok_or_else(no_text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn put(root: &Path, path: &str, content: &[u8]) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn flat(dir: &Path) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, entries) in read(dir).unwrap() {
            lines.extend(entries.iter().map(|(entry, content)| format!("{name}/{entry}={}", content.escape_ascii())));
        }
        lines
    }

    #[test]
    fn plain_and_kubernetes_directories_are_read() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path();
        put(root, "plain/type", b"mysql");
        put(root, "plain/KEY_1", b"\0\xff\n");
        put(root, "plain/.hidden", b"x");
        put(root, "plain/.metadata", b"{}");
        put(root, ".metadata", b"no binding");
        put(root, "plain/sub/x", b"x");
        put(root, ".hidden/type", b"x");
        // The layout written by Kubernetes, with an old generation that still exists.
        put(root, "k8s/..2026_2/type", b"new");
        put(root, "k8s/..2026_1/type", b"old");
        symlink("..2026_2", root.join("k8s/..data")).unwrap();
        symlink("..data/type", root.join("k8s/type")).unwrap();
        assert_eq!(flat(root), ["k8s/type=new", "plain/.metadata={}", "plain/KEY_1=\\x00\\xff\\n", "plain/type=mysql"]);
        // The layout that executord mounts: the files themselves are links.
        let home = tempfile::tempdir().unwrap();
        put(home.path(), "..gen2/db/type", b"new");
        symlink("..gen2", home.path().join("..data")).unwrap();
        fs::create_dir(home.path().join("db")).unwrap();
        symlink("../..data/db/type", home.path().join("db/type")).unwrap();
        assert_eq!(flat(&home.path().join("db")), ["db/type=new"]);
        fs::remove_dir_all(home.path().join("db")).unwrap();
        symlink("..data/db", home.path().join("db")).unwrap();
        assert_eq!(flat(home.path()), ["db/type=new"]);
        assert_eq!(flat(&home.path().join("db")), ["db/type=new"], "one binding");
        assert!(read(&home.path().join("none")).unwrap_err().to_string().starts_with("cannot read "));
    }

    #[test]
    fn invalid_entries_are_refused() {
        type Make = fn(&Path);
        let make: [(&str, Make, &str); 4] = [
            ("a file at the root", |root| put(root, "README", b""), "is not a directory"),
            ("a socket", |root| drop(std::os::unix::net::UnixListener::bind(root.join("db/s")).unwrap()), "regular"),
            ("a device", |root| symlink("/dev/zero", root.join("db/zero")).unwrap(), "regular"),
            ("a link to nothing", |root| symlink("nothing", root.join("db/x")).unwrap(), "cannot read"),
        ];
        for (what, make, expected) in make {
            let home = tempfile::tempdir().unwrap();
            put(home.path(), "db/type", b"mysql");
            make(home.path());
            let error = read(home.path()).unwrap_err().to_string();
            assert!(error.contains(expected), "{what}: {error}");
        }
    }

    /// Reading a pipe fails immediately and does not wait for a writer.
    #[test]
    fn a_pipe_is_refused_at_once() {
        let home = tempfile::tempdir().unwrap();
        put(home.path(), "db/type", b"mysql");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, home.path().join("db/pipe"), FileType::Fifo, mode, 0).unwrap();
        assert!(matches!(read(home.path()), Err(TreeError::Refused { .. })));
    }

    #[test]
    fn binding_tree_size_is_limited() {
        let home = tempfile::tempdir().unwrap();
        put(home.path(), "db/type", b"mysql");
        put(home.path(), "db/big", b"");
        File::options().write(true).open(home.path().join("db/big")).unwrap().set_len(INPUT_MAX as u64 + 1).unwrap();
        assert!(matches!(read(home.path()), Err(TreeError::TooLarge { .. })));
        let mut reader = Reader { bytes: 10, names: 1 };
        let dir = open_dir(CWD, home.path().join("db").as_os_str()).unwrap();
        assert!(matches!(reader.names(&dir, home.path()), Err(TreeError::TooLarge { .. })));
    }
}
