//! Finds the device nodes that a path of the host stands for: the node itself, or all nodes below a directory.
//!
//! Links are not followed, and other files are skipped. Nodes that are in every container's /dev are skipped, too.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use executor_core::limits::{DEVICE_DEPTH_MAX, DEVICE_ENTRIES_MAX};
use executor_core::validate::ViolationReason::{NotFound, Reserved, TooMany, Unsuitable};
use executor_core::validate::{FieldFault, check_device_path};
use executor_sys::mount::{Follow, open_dir, open_in_root};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, statat};

use super::{explain, numbers_of};

/// Maximum number of entries that are read in a directory and below it.
const VISITED_MAX: usize = 4096;

/// A node: its path in the container, and its kind and numbers.
type Found = (PathBuf, (bool, u32, u32));

/// Returns the nodes, sorted by path. `target` is the path in the container.
///
/// # Errors
/// Returns an error if the path does not exist or has a link, or there are no nodes or too many.
pub(super) fn nodes(path: &Path, target: &Path) -> Result<Vec<Found>, FieldFault> {
    let unfit = |error: &io::Error| {
        let reason = if error.kind() == io::ErrorKind::NotFound { NotFound } else { Unsuitable };
        reason.because(format!("`{}`: {}", path.display(), explain(error)))
    };
    let root = open_dir(Path::new("/")).map_err(|error| unfit(&error))?;
    let opened = open_in_root(root.as_fd(), path, OFlags::PATH, Mode::empty(), Follow::NoLinks);
    let opened = opened.map_err(|error| unfit(&error))?;
    let stat = fstat(&opened).map_err(|error| unfit(&error.into()))?;
    if let Some(numbers) = numbers_of(&stat) {
        return Ok(vec![(target.to_owned(), numbers)]);
    }
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(Unsuitable.because(format!("`{}` is neither a device node nor a directory", path.display())));
    }
    let mut walk = Walk { found: Vec::new(), visited: 0 };
    let walked = open_list(opened.as_fd(), Path::new(".")).and_then(|dir| walk.enter(&dir, target));
    walked.map_err(|error| unfit(&error))?;
    if walk.visited > VISITED_MAX || walk.found.len() > DEVICE_ENTRIES_MAX {
        let most = format!("at most {DEVICE_ENTRIES_MAX} nodes and {VISITED_MAX} entries");
        return Err(TooMany.because(format!("`{}` has too many entries: {most}", path.display())));
    }
    walk.found.sort();
    for (node, _) in &walk.found {
        check_device_path(node)?;
    }
    if walk.found.is_empty() {
        return Err(NotFound.because(format!("`{}` contains no device node", path.display())));
    }
    Ok(walk.found)
}

/// Opens a directory for listing.
fn open_list(dir: BorrowedFd<'_>, name: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(dir, name, flags, Mode::empty())?)
}

struct Walk {
    found: Vec<Found>,
    visited: usize,
}

impl Walk {
    fn enter(&mut self, dir: &OwnedFd, target: &Path) -> io::Result<()> {
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = Path::new(std::ffi::OsStr::new(match entry.file_name().to_str() {
                Ok("." | "..") | Err(_) => continue,
                Ok(name) => name,
            }));
            self.visited += 1;
            if self.visited > VISITED_MAX || self.found.len() > DEVICE_ENTRIES_MAX {
                return Ok(());
            }
            let path = target.join(name);
            if check_device_path(&path).is_err_and(|why| why.reason == Reserved) {
                continue;
            }
            // An entry that has just been removed is skipped, too.
            let Ok(stat) = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if let Some(numbers) = numbers_of(&stat) {
                self.found.push((path, numbers));
            } else if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                // Deeper directories would be refused, so their nodes are not counted.
                if path.components().count() <= DEVICE_DEPTH_MAX + 2
                    && let Ok(inner) = open_list(dir.as_fd(), name)
                {
                    self.enter(&inner, &path)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// C26: a directory stands for the nodes below it.
    #[test]
    fn directory_has_nodes_and_no_links() {
        let found = nodes(Path::new("/dev/null"), Path::new("/dev/x")).unwrap();
        assert_eq!(found, [(PathBuf::from("/dev/x"), (false, 1, 3))]);
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        fs::create_dir(dir.path().join("empty")).unwrap();
        symlink("/dev/null", dir.path().join("null")).unwrap();
        symlink("/dev", dir.path().join("dev")).unwrap();
        let target = Path::new("/dev/y");
        for (path, words) in [("", "no device node"), ("file", "neither"), ("null", "link"), ("dev/null", "link")] {
            let why = nodes(&dir.path().join(path), target).unwrap_err().description;
            assert!(why.contains(words), "{path}: {why}");
        }
        assert!(nodes(Path::new("/dev/none"), target).unwrap_err().description.contains("No such"));
    }
}
