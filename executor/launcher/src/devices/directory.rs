//! Finds the device nodes at a path of the host: the node itself, or all nodes below a directory.
//!
//! Links are not followed, and other files are skipped. Nodes that are in every container's /dev are skipped, too.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use executor_core::limits::{DEVICE_DEPTH_MAX, DEVICE_ENTRIES_MAX, HOST_DEVICES_MAX};
use executor_core::plan::{DEV, DevicePermissions};
use executor_core::spec::{DeviceNode, NodeAccess};
use executor_core::validate::ViolationReason::{NotFound, Reserved, TooMany, Unsuitable};
use executor_core::validate::{FieldFault, check_device_path};
use executor_sys::mount::{Follow, open_dir, open_in_root};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat};

use super::{Numbers, explain, numbers_of};

/// Maximum number of entries that are read in a directory and below it. Links and files of the host's /dev do not
/// count.
const VISITED_MAX: usize = 4096;

/// A node: its path in the container, and its attributes.
type Found = (PathBuf, Stat);

/// Returns the nodes, sorted by path. `target` is the path in the container.
///
/// # Errors
/// Returns an error if the path does not exist or contains a link, or if there are no nodes or too many nodes.
pub(super) fn nodes(path: &Path, target: &Path) -> Result<Vec<(PathBuf, Numbers)>, FieldFault> {
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
    let mut walk = Walk { found: Vec::new(), visited: 0, most: DEVICE_ENTRIES_MAX, only_on: None };
    let walked = open_list(opened.as_fd(), Path::new(".")).and_then(|dir| walk.enter(&dir, target));
    walked.map_err(|error| unfit(&error))?;
    if walk.visited > VISITED_MAX || walk.found.len() > DEVICE_ENTRIES_MAX {
        let most = format!("at most {DEVICE_ENTRIES_MAX} device nodes and {VISITED_MAX} entries are allowed");
        return Err(TooMany.because(format!("`{}` has too many entries; {most}", path.display())));
    }
    walk.found.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (node, _) in &walk.found {
        check_device_path(node)?;
    }
    if walk.found.is_empty() {
        return Err(NotFound.because(format!("`{}` contains no device node", path.display())));
    }
    Ok(walk.found.into_iter().filter_map(|(node, stat)| Some((node, numbers_of(&stat)?))).collect())
}

/// Opens a directory for listing.
fn open_list(dir: BorrowedFd<'_>, name: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(dir, name, flags, Mode::empty())?)
}

/// Returns all devices in `dev`, the host's /dev, sorted by path. Skips nodes with unusual paths.
///
/// # Errors
/// Returns an error if the directory cannot be read or has too many nodes.
pub(super) fn all_nodes(dev: &Path) -> Result<Vec<DeviceNode>, FieldFault> {
    let unfit = |error: &io::Error| Unsuitable.because(format!("`{}`: {}", dev.display(), explain(error)));
    let opened = open_dir(dev).map_err(|error| unfit(&error))?;
    let only_on = Some(fstat(&opened).map_err(|error| unfit(&error.into()))?.st_dev);
    let mut walk = Walk { found: Vec::new(), visited: 0, most: HOST_DEVICES_MAX, only_on };
    let walked = open_list(opened.as_fd(), Path::new(".")).and_then(|dir| walk.enter(&dir, Path::new(DEV)));
    walked.map_err(|error| unfit(&error))?;
    walk.found.retain(|(path, _)| check_device_path(path).is_ok());
    let entries: BTreeSet<&Path> = walk.found.iter().flat_map(|(path, _)| path.ancestors()).collect();
    if walk.visited > VISITED_MAX || entries.len() > HOST_DEVICES_MAX {
        let most = format!("at most {HOST_DEVICES_MAX} device nodes and directories, and {VISITED_MAX} entries");
        return Err(TooMany.because(format!("`{}` has too many entries; {most}, are allowed", dev.display())));
    }
    walk.found.sort_by(|(one, _), (other, _)| one.cmp(other));
    let permissions = DevicePermissions { read: true, write: true, ..DevicePermissions::default() };
    let node = |(path, stat): Found| {
        let (block, major, minor) = numbers_of(&stat)?;
        let access = Some(NodeAccess { mode: stat.st_mode & 0o777, uid: stat.st_uid, gid: stat.st_gid });
        Some(DeviceNode { path, block, major, minor, permissions, access, is_in_place: true })
    };
    Ok(walk.found.into_iter().filter_map(node).collect())
}

struct Walk {
    found: Vec<Found>,
    visited: usize,
    /// Number of nodes after which the walk ends.
    most: usize,
    /// If set, only nodes and directories on this file system are visited and counted.
    only_on: Option<u64>,
}

impl Walk {
    fn enter(&mut self, dir: &OwnedFd, target: &Path) -> io::Result<()> {
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = Path::new(std::ffi::OsStr::new(match entry.file_name().to_str() {
                Ok("." | "..") | Err(_) => continue,
                Ok(name) => name,
            }));
            if self.visited > VISITED_MAX || self.found.len() > self.most {
                return Ok(());
            }
            self.visited += usize::from(self.only_on.is_none());
            let path = target.join(name);
            if check_device_path(&path).is_err_and(|why| why.reason == Reserved) {
                continue;
            }
            // An entry that has just been removed is skipped, too.
            let Ok(stat) = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            if self.only_on.is_some_and(|dev| dev != stat.st_dev) {
                continue;
            }
            self.visited += usize::from(self.only_on.is_some() && (is_directory || numbers_of(&stat).is_some()));
            if numbers_of(&stat).is_some() {
                self.found.push((path, stat));
            } else if is_directory {
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

    /// CRI rule C26: a directory provides the nodes below it.
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

    /// CRI rule C28: all nodes keep their owners and permission bits; links and the nodes of every container are
    /// skipped.
    #[test]
    fn all_nodes_keep_their_owners() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "null", "net", "pts"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        symlink("/dev/full", dir.path().join("link")).unwrap();
        assert_eq!(all_nodes(dir.path()).unwrap(), []);
        let on_host = all_nodes(Path::new(DEV)).unwrap();
        let names: Vec<_> = on_host.iter().map(|node| &*node.path).collect();
        assert!(names.is_sorted() && !names.contains(&Path::new("/dev/null")), "{names:?}");
        for node in on_host {
            let Ok(stat) = rustix::fs::stat(&node.path) else { continue };
            assert_eq!(node.access.unwrap().uid, stat.st_uid);
            assert_eq!(node.mode(), stat.st_mode & 0o666, "{}", node.path.display());
        }
    }
}
