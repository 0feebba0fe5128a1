//! Converts whiteouts, which hide entries of the layers below (image specification, `layer.md`, Whiteouts). Whiteouts
//! never affect entries of the same layer, in any order.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use executor_sys::tree::remove;
use rustix::fs::{Dir, FileType, Mode, mknodat};

use super::{Existing, Tree, inspect, is_opaque, joined, keeping_time, make_opaque, open_dir};
use crate::UnpackError;
use crate::error::Context;
use crate::error::shown;

impl Tree {
    /// Hides all entries that the layers below have in a directory.
    ///
    /// # Errors
    /// Returns an error if an I/O operation fails.
    pub fn hide_all(&mut self, dirs: &[&[u8]]) -> Result<(), UnpackError> {
        let failed = || format!("cannot make directory `{}` opaque", shown(&joined(dirs)));
        let walked = self.walk(dirs, true)?;
        let Some(dir) = walked.dir else { return Ok(()) };
        // overlayfs merges the roots of all layers regardless of their attributes.
        if walked.path.is_empty() {
            self.found.opaque = true;
        } else {
            make_opaque(&dir).context(failed)?;
        }
        drop_whiteouts(&dir).context(failed)
    }

    /// Hides the entry that the layers below have at a path.
    ///
    /// # Errors
    /// Returns an error if an I/O operation fails.
    pub fn hide(&mut self, path: &[&[u8]]) -> Result<(), UnpackError> {
        let removes_root = || UnpackError::entry(b"/", "is the root directory, which a whiteout cannot remove");
        let (name, dirs) = path.split_last().ok_or_else(removes_root)?;
        let full = joined(path);
        let failed = || format!("cannot create the whiteout of `{}`", shown(&full));
        let walked = self.walk(dirs, false)?;
        let below = walked.path.join(&b'/');
        // If the layers below do not have the directory, readdir in a container would list the whiteout itself.
        let void = walked.hidden || !self.parents.has_directory(&below).context(failed)?;
        let there = match &walked.dir {
            Some(dir) => inspect(dir.as_fd(), name).context(failed)?,
            None => Existing::Nothing,
        };
        match there {
            Existing::Whiteout | Existing::Symlink | Existing::Other => return Ok(()),
            Existing::Directory if void => return Ok(()),
            Existing::Directory => {
                let dir = walked.dir.as_ref().ok_or(rustix::io::Errno::NOENT).context(failed)?;
                let own = open_dir(dir.as_fd(), name).context(failed)?;
                make_opaque(&own).context(failed)?;
                return drop_whiteouts(&own).context(failed);
            }
            Existing::Nothing if void => {
                self.found.depends |= !walked.hidden;
                return Ok(());
            }
            Existing::Nothing => {}
        }
        let walked = self.walk(dirs, true)?;
        let dir = walked.dir.ok_or(rustix::io::Errno::NOENT).context(failed)?;
        keeping_time(&dir, || Ok(mknodat(&dir, *name, FileType::CharacterDevice, Mode::empty(), 0)?)).context(failed)
    }
}

/// Removes the whiteouts from a directory and its subdirectories, because the layers below are hidden there anyway.
fn drop_whiteouts(dir: &OwnedFd) -> std::io::Result<()> {
    // Each directory is opened by its path from the top, one at a time. The stack has names and not descriptors.
    let mut left = vec![Vec::<Vec<u8>>::new()];
    while let Some(path) = left.pop() {
        let at = if path.is_empty() { b".".to_vec() } else { path.join(&b'/') };
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
        let current = super::open_beneath(dir.as_fd(), &at, flags)?;
        if !path.is_empty() && is_opaque(&current)? {
            continue; // an opaque directory has no whiteouts
        }
        let mut whiteouts = Vec::new();
        for entry in Dir::read_from(&current)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name == b"." || name == b".." {
                continue;
            }
            match inspect(current.as_fd(), &name)? {
                Existing::Whiteout => whiteouts.push(name),
                Existing::Directory => left.push([path.as_slice(), &[name]].concat()),
                _ => {}
            }
        }
        keeping_time(&current, || {
            whiteouts.iter().try_for_each(|name| remove(current.as_fd(), OsStr::from_bytes(name)))
        })?;
    }
    Ok(())
}
