//! Looks up a directory component by component. Resolves links as if the layer's root were `/`, and uses the layers
//! below for entries that the layer does not have.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{OFlags, readlinkat};
use rustix::io::Errno;

use super::parents::Below;
use super::{DIR_MODE, Existing, Marks, Tree, inspect, is_opaque, make_dir, mark_fd, open_beneath, open_dir};
use crate::UnpackError;
use crate::error::Context;
use crate::error::shown;

/// Maximum number of symbolic links that are followed for one directory. umoci has the same limit; the kernel's limit
/// is 40.
const LINKS_MAX: u32 = 255;

/// Result of the lookup of a directory, component by component.
pub(super) struct Walked {
    /// The directory, if the layer contains it.
    pub(super) dir: Option<OwnedFd>,
    /// Components from the root, with links resolved.
    pub(super) path: Vec<Vec<u8>>,
    /// True if the layers below are hidden at this path.
    pub(super) hidden: bool,
}

/// State of the lookup of a directory, component by component.
struct ArchiveWalk {
    dir: Option<OwnedFd>,
    path: Vec<Vec<u8>>,
    /// Number of components up to the uppermost directory that hides the layers below.
    hidden_from: Option<usize>,
    links: u32,
}

impl Tree {
    /// Walks to a directory. If `make` is true, creates missing directories, and replaces other entries with
    /// directories.
    ///
    /// # Errors
    /// Returns an error if there are too many links, or if an I/O operation fails.
    pub(super) fn walk(&mut self, names: &[&[u8]], make: bool) -> Result<Walked, UnpackError> {
        let wanted = names.join(&b'/');
        let failed = || format!("cannot open the path `{}`", shown(&wanted));
        let mut walk = ArchiveWalk {
            dir: Some(open_dir(self.root.as_fd(), b".").context(failed)?),
            path: Vec::new(),
            hidden_from: self.found.opaque.then_some(0),
            links: 0,
        };
        let mut left: VecDeque<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
        while let Some(name) = left.pop_front() {
            let link = match name.as_slice() {
                b"" | b"." => None,
                b".." => self.up(&mut walk).map(|()| None).context(failed)?,
                name => self.step(&mut walk, name, make)?,
            };
            let Some(link) = link else { continue };
            walk.links += 1;
            if walk.links > LINKS_MAX {
                let why = format!("has more than {LINKS_MAX} symbolic links in its path");
                return Err(UnpackError::entry(&wanted, why));
            }
            if link.starts_with(b"/") {
                walk.path.clear();
                self.go_to(&mut walk).context(failed)?;
            }
            for name in link.split(|byte| *byte == b'/').rev() {
                left.push_front(name.to_vec());
            }
        }
        Ok(Walked { dir: walk.dir, path: walk.path, hidden: walk.hidden_from.is_some() })
    }

    /// Walks to the next component. If the component is a link, returns the target.
    fn step(&mut self, walk: &mut ArchiveWalk, name: &[u8], make: bool) -> Result<Option<Vec<u8>>, UnpackError> {
        let full = [walk.path.join(&b'/'), name.to_vec()].into_iter().filter(|part| !part.is_empty());
        let full = full.collect::<Vec<_>>().join(&b'/');
        let failed = || format!("cannot open directory `{}`", shown(&full));
        let there = match &walk.dir {
            Some(dir) => inspect(dir.as_fd(), name).context(failed)?,
            None => Existing::Nothing,
        };
        let mut marks = Marks { mode: DIR_MODE, ..Marks::default() };
        match there {
            Existing::Symlink => {
                let dir = walk.dir.as_ref().ok_or(Errno::NOENT).context(failed)?;
                return Ok(Some(readlinkat(dir, name, Vec::new()).context(failed)?.into_bytes()));
            }
            Existing::Directory => {}
            Existing::Nothing => {
                let below = match walk.hidden_from {
                    Some(_) => Below::Nothing,
                    None => self.parents.open_below(&full).context(failed)?,
                };
                // Record the dependency even if nothing is found: on other lower layers the lookup may have another
                // result.
                self.found.depends |= make && walk.hidden_from.is_none();
                match below {
                    Below::Symlink(link) => return Ok(Some(link)),
                    Below::Directory(theirs) => marks = theirs,
                    Below::Nothing | Below::Other => {}
                }
            }
            Existing::Whiteout | Existing::Other => walk.hidden_from = walk.hidden_from.or(Some(walk.path.len() + 1)),
        }
        walk.path.push(name.to_vec());
        let Some(dir) = walk.dir.take() else { return Ok(None) };
        if !matches!(there, Existing::Directory) {
            if !make {
                return Ok(None);
            }
            make_dir(&dir, name, &there).context(failed)?;
            let made = open_dir(dir.as_fd(), name).context(failed)?;
            mark_fd(&made, &marks, &full)?;
            walk.dir = Some(made);
            return Ok(None);
        }
        let opened = open_dir(dir.as_fd(), name).context(failed)?;
        if walk.hidden_from.is_none() && is_opaque(&opened).context(failed)? {
            walk.hidden_from = Some(walk.path.len());
        }
        walk.dir = Some(opened);
        Ok(None)
    }

    /// Goes to the parent directory. The root is its own parent.
    fn up(&self, walk: &mut ArchiveWalk) -> Result<(), Errno> {
        walk.path.pop();
        self.go_to(walk)
    }

    /// Opens the directory at the current path of the walk.
    fn go_to(&self, walk: &mut ArchiveWalk) -> Result<(), Errno> {
        walk.hidden_from = walk.hidden_from.filter(|from| *from <= walk.path.len());
        let path = walk.path.join(&b'/');
        let path = if path.is_empty() { b".".to_vec() } else { path };
        walk.dir = match open_beneath(self.root.as_fd(), &path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Errno::NOENT | Errno::NOTDIR) => None,
            dir => Some(dir?),
        };
        Ok(())
    }
}
