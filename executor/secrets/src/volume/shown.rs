//! Maintains the visible tree of a mount point: real directories as in the current generation, and a link for each
//! file.
//!
//! Programs recognize bindings by the type of an entry (`os.ReadDir` and `IsDir`, `Dirent.isDirectory()`) and not by
//! the type of a link's target, so only files are links. The functions compare two trees, a generation and the visible
//! tree. Only callers of this module write to these trees.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RawMode, RenameFlags, Stat, mkdirat, openat, renameat_with, statat,
};
use rustix::io::Errno;

use super::{Access, Owner, make_link, own};

/// Name prefix of removed entries that are not deleted yet. Names of secret files never begin with two dots.
const TAKEN: &str = "..taken";
/// Permission for all users to list and search a directory.
const OPEN_TO_ALL: RawMode = 0o055;

/// Creates in `into` the entries of a generation that `shown` lacks, with their parent directories, so that [`merge`]
/// can move them to `shown`. Visible directories get the additional permissions of the generation's directories. Pass
/// `None` as `shown` if the visible directory is empty.
pub(super) fn add(
    generation: BorrowedFd<'_>,
    shown: Option<BorrowedFd<'_>>,
    into: BorrowedFd<'_>,
    link: &dyn Fn(&Path) -> PathBuf,
) -> io::Result<()> {
    let stat = rustix::fs::fstat(generation)?;
    let owner = Owner { uid: stat.st_uid, gid: stat.st_gid };
    if let Some(shown) = shown {
        widen(generation, shown, Path::new(""))?;
    }
    let mut todo = vec![(PathBuf::new(), shown)];
    while let Some((dir, shown)) = todo.pop() {
        let mut is_made = false;
        for (name, kind) in entries(generation, &dir)? {
            let path = dir.join(name);
            let there = if let Some(shown) = shown { kind_of(shown, &path)? } else { None };
            match (kind, there, shown) {
                (FileType::Directory, Some(FileType::Directory), Some(tree)) => {
                    widen(generation, tree, &path)?;
                    todo.push((path, shown));
                }
                (FileType::Directory, ..) => {
                    make_like(generation, into, &path)?;
                    todo.push((path, None));
                }
                (_, Some(FileType::Symlink), _) => {}
                _ => {
                    if !std::mem::replace(&mut is_made, true) {
                        make_like(generation, into, &dir)?;
                    }
                    make_link(&link(&path), into, &path, owner)?;
                }
            }
        }
    }
    Ok(())
}

/// Moves prepared entries to `shown`. If a path changes between file and directory, the two entries are exchanged.
pub(super) fn merge(made: BorrowedFd<'_>, shown: BorrowedFd<'_>) -> io::Result<()> {
    let mut todo = vec![PathBuf::new()];
    while let Some(dir) = todo.pop() {
        for (name, kind) in entries(made, &dir)? {
            let path = dir.join(name);
            match renameat_with(made, &path, shown, &path, RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) if kind == FileType::Directory && kind_of(shown, &path)? == Some(kind) => {
                    todo.push(path);
                }
                Err(Errno::EXIST) => renameat_with(made, &path, shown, &path, RenameFlags::EXCHANGE)?,
                moved => moved?,
            }
        }
    }
    Ok(())
}

/// Moves entries that a generation lacks into `aside`; whole directories are moved with their content. The remaining
/// directories get the generation's permissions.
pub(super) fn prune(generation: BorrowedFd<'_>, shown: BorrowedFd<'_>, aside: BorrowedFd<'_>) -> io::Result<()> {
    let mut number = 0;
    copy_access(generation, shown, Path::new(""))?;
    let mut todo = vec![PathBuf::new()];
    while let Some(dir) = todo.pop() {
        for (name, kind) in entries(shown, &dir)? {
            let path = dir.join(name);
            match (kind, kind_of(generation, &path)?) {
                (FileType::Directory, Some(FileType::Directory)) => {
                    copy_access(generation, shown, &path)?;
                    todo.push(path);
                }
                (FileType::Symlink, Some(FileType::RegularFile)) => {}
                _ => loop {
                    let taken = format!("{TAKEN}{number}");
                    number += 1;
                    match renameat_with(shown, &path, aside, taken, RenameFlags::NOREPLACE) {
                        Err(Errno::EXIST) => {}
                        moved => break moved?,
                    }
                },
            }
        }
    }
    Ok(())
}

/// Lists the entries of a directory below `root`.
fn entries(root: BorrowedFd<'_>, dir: &Path) -> io::Result<Vec<(OsString, FileType)>> {
    let mut found = Vec::new();
    let opened = openat(root, or_itself(dir), DIRECTORY_FLAGS, Mode::empty())?;
    for entry in Dir::new(opened)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            found.push((OsString::from_vec(name.to_vec()), entry.file_type()));
        }
    }
    Ok(found)
}

const DIRECTORY_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn or_itself(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

fn stat_of(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<Stat>> {
    match statat(root, or_itself(path), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn kind_of(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<FileType>> {
    Ok(stat_of(root, path)?.map(|stat| FileType::from_raw_mode(stat.st_mode)))
}

/// Creates a directory and its missing parents with the owners and modes of the same directories in `model`.
fn make_like(model: BorrowedFd<'_>, root: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    if path.as_os_str().is_empty() || kind_of(root, path)?.is_some() {
        return Ok(());
    }
    let mut missing: Vec<&Path> = path.ancestors().filter(|path| !path.as_os_str().is_empty()).collect();
    missing.reverse();
    for path in missing {
        match mkdirat(root, path, Mode::RWXU) {
            Ok(()) => copy_access(model, root, path)?,
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Copies owner and mode of a directory from the same path in `model`.
pub(super) fn copy_access(model: BorrowedFd<'_>, root: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let (Some(wanted), Some(is)) = (stat_of(model, path)?, stat_of(root, path)?) else { return Ok(()) };
    if (wanted.st_mode, wanted.st_uid, wanted.st_gid) == (is.st_mode, is.st_uid, is.st_gid) {
        return Ok(());
    }
    set_access(root, path, wanted.st_uid, Access { mode: wanted.st_mode & 0o777, gid: wanted.st_gid })
}

/// Adds the permissions of the same directory in `model`, and removes none: for a moment both trees are in use.
fn widen(model: BorrowedFd<'_>, root: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let (Some(wanted), Some(is)) = (stat_of(model, path)?, stat_of(root, path)?) else { return Ok(()) };
    let shared = (wanted.st_mode | is.st_mode) & 0o777;
    let mode = if wanted.st_gid != is.st_gid && shared & 0o077 != 0 { shared | OPEN_TO_ALL } else { shared };
    if mode == is.st_mode & 0o777 { Ok(()) } else { set_access(root, path, is.st_uid, Access { mode, gid: is.st_gid }) }
}

fn set_access(root: BorrowedFd<'_>, path: &Path, uid: u32, access: Access) -> io::Result<()> {
    let dir = openat(root, or_itself(path), DIRECTORY_FLAGS, Mode::empty())?;
    own(dir.as_fd(), uid, access)
}
