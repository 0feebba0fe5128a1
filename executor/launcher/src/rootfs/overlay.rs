//! Mounts the root of a container as an overlay: shared lower directories, which are never written to, and the
//! container's own upper directory, which is removed with the container.
//!
//! The lower directories are a `dir:` or the layers of an image. The directories are passed as open descriptors, bottom
//! first.

use std::fs::{self, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use executor_core::protocol::{Reason, Refused};
use executor_sys::mount::{attach, detach, open_dir};
use executor_sys::overlay::{Upper, overlay};

use super::{Overlay, etc};
use crate::dirs::Dirs;
use crate::errors::failed;
use crate::files::ensure_dir;
use crate::ids::Ids;

/// Mounts the overlay of `lower` at the container's stage. The root directory gets the mode and owner of `model`,
/// mapped to the container's ids. Without `model`, the root directory has mode 0755 and belongs to the container's root
/// user. The upper layer is in the container's state directory, and is not synced. Returns the views of `lower` that
/// were created for the container's ids. Closing a view blocks in the kernel, so close the views when no client waits
/// for this process.
///
/// # Errors
/// Returns an error if the kernel has no overlayfs or rejects one of the directories, or if the disk is full. `about`
/// is the source of the root in the request.
pub(super) fn assemble(
    about: &str,
    lower: &[BorrowedFd<'_>],
    model: Option<&Metadata>,
    names: Option<&etc::Contents>,
    dirs: &Dirs,
    ids: &Ids,
) -> Result<Overlay, Refused> {
    let at = &dirs.stage;
    let made = ids.views(about, lower)?;
    let views: Option<Vec<_>> = made.as_ref().map(|views| views.iter().map(AsFd::as_fd).collect());
    let (upper, work) = dirs.layers();
    for layer in [&upper, &work] {
        // A warm container already has these directories.
        ensure_dir(layer, 0o700).map_err(|error| failed("cannot create the writable layer", &error))?;
    }
    let alike = || {
        let (uid, gid) = model.map_or((0, 0), |model| (model.uid(), model.gid()));
        let mode = model.map_or(0o755, |model| model.mode() & 0o7777);
        std::os::unix::fs::lchown(&upper, Some(ids.map().to_host(uid)), Some(ids.map().to_host(gid)))?;
        fs::set_permissions(&upper, fs::Permissions::from_mode(mode))
    };
    let written = alike().and_then(|()| etc::write(lower, &upper, names, ids.map()));
    let has_names = written.map_err(|error| failed("cannot prepare the writable layer", &error))?;
    let mounted = match views {
        None => mount(lower, &upper, &work, at),
        Some(views) => match mount(&views, &upper, &work, at) {
            // Before Linux 6.15, the mount of a layer must be attached.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                renew(dirs, &work).and_then(|()| attached(&views, dirs, || mount(&views, &upper, &work, at)))
            }
            mounted => mounted,
        },
    };
    mounted.map(|()| Overlay { views: made.unwrap_or_default(), has_names }).map_err(|error| {
        if error.raw_os_error() == Some(libc::ENODEV) {
            return Refused::new(
                Reason::Internal,
                "rootfs: this kernel has no overlay file system: load it (modprobe overlay)",
            );
        }
        failed(&format!("cannot mount an overlay of `{about}` with an upper layer in {}", dirs.layer.display()), &error)
    })
}

/// Mounts a read-only overlay of `lower`, which has at least two directories, at `at`.
///
/// # Errors
/// Returns the same errors as [`assemble`].
pub(super) fn read_only(
    about: &str,
    lower: &[BorrowedFd<'_>],
    at: BorrowedFd<'_>,
    dirs: &Dirs,
    ids: &Ids,
) -> Result<(), Refused> {
    let mounted = match ids.views(about, lower)? {
        None => overlay(lower, None, at),
        Some(views) => {
            let views: Vec<_> = views.iter().map(AsFd::as_fd).collect();
            match overlay(&views, None, at) {
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    attached(&views, dirs, || overlay(&views, None, at))
                }
                mounted => mounted,
            }
        }
    };
    mounted.map_err(|error| failed(&format!("cannot mount an overlay of `{about}`"), &error))
}

/// Recreates the work directory. A failed mount leaves a marker there, and with `volatile` the marker makes every
/// further mount fail.
fn renew(dirs: &Dirs, work: &Path) -> io::Result<()> {
    fs::remove_dir_all(work)?;
    dirs.private(work)
}

/// Runs `act` while the views are attached to a directory of the container, on top of each other. A mounted overlay no
/// longer needs the attached views.
fn attached(views: &[BorrowedFd<'_>], dirs: &Dirs, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let place = dirs.run.join("lower");
    ensure_dir(&place, 0o700)?;
    let done = views.iter().try_for_each(|view| attach(*view, open_dir(&place)?.as_fd())).and_then(|()| act());
    while detach(&place).is_ok() {} // the directory is removed recursively later
    done
}

fn mount(lower: &[BorrowedFd<'_>], upper: &Path, work: &Path, at: &Path) -> io::Result<()> {
    let (dir, work) = (open_dir(upper)?, open_dir(work)?);
    overlay(lower, Some(Upper { dir: dir.as_fd(), work: work.as_fd() }), open_dir(at)?.as_fd())
}
