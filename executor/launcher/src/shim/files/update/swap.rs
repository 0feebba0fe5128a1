//! Swaps the generations in an update: all mount points show the new generation, or all show the old generation.
//!
//! A directory needs one rename in the volume. A single file has its own mount, which is replaced in the container's
//! mount namespace: the new mount is attached beneath the old mount, and then the old mount is removed. One process
//! performs all steps without a pause. To undo a partial swap, each mount point is inspected.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use executor_core::placement::MountPoint;
use executor_core::protocol::{Reason, Refused};
use executor_core::record::PreparedContainer;
use executor_core::update::{MountChange, NextContent, PlacedUpdate};
use executor_secrets::volume::{Rotation, Volume};
use executor_sys::mount::{self, Follow, open_dir, open_in_root};
use executor_sys::process;
use rustix::fs::{Mode, OFlags, fstat};

use crate::errors::failed;
use crate::shim::files::helper::{self, HelperError, HelperFailure};

pub(super) struct Swap<'a> {
    pub(super) volume: &'a Volume,
    pub(super) rotation: &'a Rotation<'a>,
    pub(super) placed: &'a PlacedUpdate,
    pub(super) prepared: Option<&'a PreparedContainer>,
}

impl Swap<'_> {
    /// Makes every mount point show the new generation.
    pub(super) fn apply(&self) -> Result<(), Refused> {
        let views = self.views(|mount| self.rotation.beside(mount))?;
        if views.is_empty() {
            return self.rotation.swap().map_err(|error| failed("cannot swap the secret files", &error));
        }
        self.mount_in_container(&views, || {
            self.rotation.swap().map_err(|error| HelperFailure("cannot swap the secret files".into(), error))
        })
    }

    /// Makes every mount point show the old generation again.
    pub(super) fn revert(&self) -> Result<(), Refused> {
        self.rotation.swap_back().map_err(|error| failed("cannot swap back the secret files", &error))?;
        let views = self.views(|mount| mount.to_string().into())?;
        if views.is_empty() { Ok(()) } else { self.mount_in_container(&views, || Ok(())) }
    }

    /// Returns views of the changed single files, each with its mount point.
    fn views(&self, path: impl Fn(usize) -> PathBuf) -> Result<Vec<(&MountPoint, OwnedFd)>, Refused> {
        let singles = self.placed.changes.iter().filter(|change| matches!(change.next, NextContent::File(_)));
        let view = |change: &MountChange| {
            let view = self.volume.view(&path(change.mount));
            let view = view.map_err(|error| failed("cannot create views of the secret files", &error))?;
            Ok((&self.placed.mounts[change.mount], view))
        };
        singles.map(view).collect()
    }

    /// Mounts these views in the container, then immediately calls `then`.
    fn mount_in_container(
        &self,
        views: &[(&MountPoint, OwnedFd)],
        then: impl FnOnce() -> Result<(), HelperFailure>,
    ) -> Result<(), Refused> {
        let init = self.prepared.map_or(0, |prepared| prepared.init.pid);
        let act = || {
            let init = process::pidfd(init)
                .map_err(|error| HelperFailure("cannot open the container's init".into(), error))?;
            process::enter_namespaces(init.as_fd(), true, false)
                .map_err(|error| HelperFailure("cannot enter the namespaces".into(), error))?;
            for (point, view) in views {
                show(&point.target, view)
                    .map_err(|error| HelperFailure(format!("cannot mount at {}", point.target.display()), error))?;
            }
            then().map(|()| Vec::new())
        };
        helper::run(act).map(drop).map_err(|error| match error {
            HelperError::Failed { errno: libc::ENOENT | libc::ENOTDIR | libc::ELOOP, words } => {
                Refused::new(Reason::Precondition, format!("the container has moved the mounted files: {words}"))
            }
            error => error.into(),
        })
    }
}

/// Replaces a view with another view of the same volume. At each moment one of the two views is visible.
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
