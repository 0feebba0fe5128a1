//! Detects symbolic links and other obstacles in the path of a mount point.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::{PlacementError, RootfsEntry, RootfsView};

/// Searches the future tree of a container for conflicts. Each path is looked up once, because many files share their
/// directories.
pub(super) struct ConflictSearch<'a, V> {
    fresh: &'a [PathBuf],
    view: &'a V,
    /// Results of earlier lookups.
    entries: RefCell<HashMap<&'a Path, RootfsEntry>>,
}

impl<'a, V: RootfsView> ConflictSearch<'a, V> {
    /// Creates a search in a rootfs. `fresh` holds the mount points of file systems that are empty in a new container.
    pub(super) fn new(fresh: &'a [PathBuf], view: &'a V) -> Self {
        Self { fresh, view, entries: RefCell::default() }
    }

    fn entry(&self, at: &'a Path) -> Result<RootfsEntry, PlacementError<V::Error>> {
        if let Some(entry) = self.entries.borrow().get(at) {
            return Ok(*entry);
        }
        let entry = self.view.entry(at).map_err(|error| PlacementError::View(at.to_owned(), error))?;
        self.entries.borrow_mut().insert(at, entry);
        Ok(entry)
    }

    fn is_fresh(&self, path: &Path) -> bool {
        self.fresh.iter().any(|mount| mount == path)
    }

    /// Returns the first missing component of the path `directory`; `None` if all components exist. The inner error is
    /// the reason why `path`, which is `directory` or below it, cannot be mounted.
    pub(super) fn first_missing(
        &self,
        directory: &'a Path,
        path: &Path,
    ) -> Result<Result<Option<PathBuf>, String>, PlacementError<V::Error>> {
        let mut prefixes: Vec<&'a Path> = directory.ancestors().filter(|prefix| prefix.parent().is_some()).collect();
        prefixes.reverse();
        for prefix in prefixes {
            if self.is_fresh(prefix) {
                continue; // always a directory, regardless of the rootfs
            }
            if self.fresh.iter().any(|mount| prefix.starts_with(mount)) {
                return Ok(Ok(Some(prefix.to_owned())));
            }
            match self.entry(prefix)? {
                RootfsEntry::Directory => {}
                RootfsEntry::Missing => return Ok(Ok(Some(prefix.to_owned()))),
                RootfsEntry::Symlink => {
                    let why = format!("`{}`: {} is a symbolic link in the rootfs", path.display(), prefix.display());
                    return Ok(Err(why));
                }
                RootfsEntry::File | RootfsEntry::Special => {
                    let why = format!("`{}`: {} is not a directory in the rootfs", path.display(), prefix.display());
                    return Ok(Err(why));
                }
            }
        }
        Ok(Ok(None))
    }

    /// Returns the first missing directory above a file; `None` if the file is mounted by itself.
    pub(super) fn first_missing_parent(
        &self,
        path: &'a Path,
    ) -> Result<Result<Option<PathBuf>, String>, PlacementError<V::Error>> {
        let Some(parent) = path.parent() else { return Ok(Err(format!("`{}` is the root directory", path.display()))) };
        match self.first_missing(parent, path)? {
            Ok(None) => {}
            missing => return Ok(missing),
        }
        if self.is_fresh(path) {
            return Ok(Err(format!("`{}` is already a directory in the container", path.display())));
        }
        if self.fresh.iter().any(|mount| path.starts_with(mount)) {
            return Ok(Ok(None));
        }
        let shown = path.display();
        Ok(match self.entry(path)? {
            RootfsEntry::Missing | RootfsEntry::File => Ok(None),
            RootfsEntry::Symlink => Err(format!("{shown} is a symbolic link in the rootfs")),
            RootfsEntry::Directory => Err(format!("`{shown}` is a directory in the rootfs")),
            RootfsEntry::Special => Err(format!("`{shown}` is a device, a socket or a pipe in the rootfs")),
        })
    }
}
