//! Presents the layers below a layer as one read-only tree.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use executor_sys::overlay::overlay;
use executor_tar::Xattrs;
use rustix::fs::{AtFlags, FileType, OFlags, Stat, openat, readlinkat, statat};
use rustix::io::Errno;

use super::{Marks, OVERLAY, XATTR_MAX, marks_of, open_beneath, proc_path, xattr_names};
use crate::UnpackError;
use crate::error::Context;

/// The merged tree of the layers below.
pub struct Parents {
    view: Option<OwnedFd>,
}

/// Parent directory of an entry, the entry's name in it, and the entry's status.
pub(super) type ParentEntry<'a> = (OwnedFd, &'a [u8], Stat);

/// Entry at a path in the layers below.
pub(super) enum Below {
    /// There is no entry.
    Nothing,
    Directory(Marks),
    /// A symbolic link with this target.
    Symlink(Vec<u8>),
    Other,
}

impl Parents {
    /// Returns the empty tree, for the lowest layer, which has no layers below it.
    pub fn none() -> Self {
        Self { view: None }
    }

    /// Merges opened directories in overlayfs format, bottom first. If there are several, mounts them in the caller's
    /// mount namespace, on the directory that `at` specifies by its parent and name.
    ///
    /// # Errors
    /// Returns an error if the directories cannot be mounted.
    pub fn new(layers: &[BorrowedFd<'_>], at: (BorrowedFd<'_>, &str)) -> Result<Self, UnpackError> {
        let (parent, name) = at;
        let open = |dir: BorrowedFd<'_>, path: &str| {
            openat(dir, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, rustix::fs::Mode::empty())
        };
        let failed = || "cannot open the layers below".to_owned();
        let view = match layers {
            [] => None,
            [one] => Some(open(*one, ".").context(failed)?),
            many => {
                let place = open(parent, name).context(failed)?;
                overlay(many, None, place.as_fd()).context(failed)?;
                Some(open(parent, name).context(failed)?)
            }
        };
        Ok(Self { view })
    }

    /// Looks up a path that has no symbolic links.
    pub(super) fn open_below(&self, path: &[u8]) -> Result<Below, Errno> {
        let Some((dir, name, stat)) = self.find(path)? else { return Ok(Below::Nothing) };
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Below::Directory(marks_of(&stat, attributes(&dir, name)?)),
            FileType::Symlink => Below::Symlink(readlinkat(&dir, name, Vec::new())?.into_bytes()),
            _ => Below::Other,
        })
    }

    pub(super) fn has_directory(&self, path: &[u8]) -> Result<bool, Errno> {
        Ok((path.is_empty() && self.view.is_some()) || matches!(self.open_below(path)?, Below::Directory(_)))
    }

    /// Returns the entry at a path: its directory, last component and status. A whiteout in the lowest layer counts as
    /// a missing entry.
    pub(super) fn find<'a>(&self, path: &'a [u8]) -> Result<Option<ParentEntry<'a>>, Errno> {
        let Some(view) = &self.view else { return Ok(None) };
        let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b"."[..], path),
        };
        if name.is_empty() {
            return Ok(None);
        }
        let absent = |error| matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP);
        let dir = match open_beneath(view.as_fd(), above, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(error) if absent(error) => return Ok(None),
            dir => dir?,
        };
        match statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0 => {
                Ok(None)
            }
            stat => Ok(Some((dir, name, stat?))),
        }
    }
}

/// Returns the extended attributes of an entry, without the attributes of overlayfs.
pub(super) fn attributes(dir: &OwnedFd, name: &[u8]) -> Result<Xattrs, Errno> {
    let path = proc_path(dir, name);
    let mut found = Vec::new();
    for attribute in xattr_names(|buffer| rustix::fs::llistxattr(path.as_slice(), buffer))? {
        if attribute.starts_with(OVERLAY) {
            continue;
        }
        let mut value = vec![0_u8; XATTR_MAX];
        let length = rustix::fs::lgetxattr(path.as_slice(), attribute.as_slice(), &mut value)?;
        value.truncate(length);
        found.push((attribute, value));
    }
    Ok(found)
}
