//! The moment of an update: every mount point shows the new generation, or every one the old.
//!
//! A directory is one rename in the volume. A file that is mounted by itself has a mount of its own to be replaced: the
//! new one goes beneath the old one, and the old one goes away, in the container's mount namespace. All of it follows
//! one another at once, in one process. What comes out of it half done is taken back by looking at what there is.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use executor_core::placement::MountPoint;
use executor_core::protocol::{Reason, Refused};
use executor_core::record::Prepared;
use executor_core::update::{Change, Next, Placed};
use executor_secrets::volume::{Rotation, Volume};
use executor_sys::mount::{self, Follow, open_dir, open_in_root};
use executor_sys::process;
use rustix::fs::{Mode, OFlags, fstat};

use crate::errors::failed;
use crate::shim::files::helper::{self, Failed, NotDone};

/// The swap, at every mount point.
pub(super) struct Swap<'a> {
    pub(super) volume: &'a Volume,
    pub(super) rotation: &'a Rotation<'a>,
    pub(super) placed: &'a Placed,
    pub(super) prepared: Option<&'a Prepared>,
}

impl Swap<'_> {
    /// Puts the new generation in force.
    pub(super) fn forth(&self) -> Result<(), Refused> {
        let views = self.views(|mount| self.rotation.beside(mount))?;
        if views.is_empty() {
            return self.rotation.swap().map_err(|error| failed("secret files", &error));
        }
        self.in_the_container(&views, || self.rotation.swap().map_err(|error| Failed("secret files".into(), error)))
    }

    /// Puts the old generation in force again, wherever it is not.
    pub(super) fn back(&self) -> Result<(), Refused> {
        self.rotation.swap_back().map_err(|error| failed("secret files", &error))?;
        let views = self.views(|mount| mount.to_string().into())?;
        if views.is_empty() { Ok(()) } else { self.in_the_container(&views, || Ok(())) }
    }

    /// Views of the single files that change, each with its mount point.
    fn views(&self, path: impl Fn(usize) -> PathBuf) -> Result<Vec<(&MountPoint, OwnedFd)>, Refused> {
        let singles = self.placed.changes.iter().filter(|change| matches!(change.next, Next::File(_)));
        let view = |change: &Change| {
            let view = self.volume.view(&path(change.mount));
            let view = view.map_err(|error| failed("views of the secret files", &error))?;
            Ok((&self.placed.mounts[change.mount], view))
        };
        singles.map(view).collect()
    }

    /// Shows these views, and does what is to be done right after it.
    fn in_the_container(
        &self,
        views: &[(&MountPoint, OwnedFd)],
        then: impl FnOnce() -> Result<(), Failed>,
    ) -> Result<(), Refused> {
        let init = self.prepared.map_or(0, |prepared| prepared.init.pid);
        let act = || {
            let init = process::pidfd(init).map_err(|error| Failed("init".into(), error))?;
            process::enter_namespaces(init.as_fd(), true, false).map_err(|error| Failed("namespaces".into(), error))?;
            for (point, view) in views {
                show(&point.target, view).map_err(|error| Failed(point.target.display().to_string(), error))?;
            }
            then().map(|()| Vec::new())
        };
        helper::run(act).map(drop).map_err(|not_done| match not_done {
            NotDone::Failed { errno: libc::ENOENT | libc::ENOTDIR | libc::ELOOP, words } => {
                Refused::new(Reason::Precondition, format!("the container has moved what it was given: {words}"))
            }
            not_done => not_done.into(),
        })
    }
}

/// Shows a view in place of another one of the same volume, with no moment at which neither shows.
fn show(target: &Path, view: &OwnedFd) -> io::Result<()> {
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let root = open_dir(Path::new("/"))?;
    let open =
        |path: &Path, flags| open_in_root(root.as_fd(), path, OFlags::PATH | flags, Mode::empty(), Follow::NoLinks);
    let (parent, top) = (open(parent, OFlags::DIRECTORY)?, open(target, OFlags::empty())?);
    let (shown, wanted) = (fstat(&top)?, fstat(view)?);
    if shown.st_dev != wanted.st_dev {
        return Err(io::Error::new(io::ErrorKind::NotFound, "another file is mounted there"));
    }
    if shown.st_ino == wanted.st_ino {
        return Ok(());
    }
    mount::attach_beneath(view.as_fd(), top.as_fd())?;
    mount::detach_at(parent.as_fd(), name)
}
