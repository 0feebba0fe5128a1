//! The root of a container as an overlay: lower directories that are shared and never written to, and an upper one of
//! the container's own, which goes with it.
//!
//! In go opened directories, bottom first: those of a `dir:` and of the layers of an image alike.

use std::fs::{self, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use executor_core::protocol::{Reason, Refused};
use executor_sys::mount::open_dir;
use executor_sys::overlay::{Upper, overlay};

use super::failed;
use crate::dirs::Dirs;

/// Mounts the overlay of `lower` at `at`. The root itself has the mode and the owner of `model`, or is root's where there is
/// none. The upper layer lies in the container's state directory, so that nothing of it needs to reach the disk.
///
/// # Errors
/// The kernel has no overlayfs, or does not take one of these directories; a full disk. `about` is what the root is
/// made of, as the request names it.
pub(super) fn assemble(
    about: &str,
    lower: &[BorrowedFd<'_>],
    model: Option<&Metadata>,
    at: &Path,
    dirs: &Dirs,
) -> Result<(), Refused> {
    let (upper, work) = (dirs.state.join("upper"), dirs.state.join("work"));
    for layer in [&upper, &work] {
        dirs.private(layer).map_err(|error| failed("state directory", &error))?;
    }
    let alike = || {
        let (uid, gid, mode) = model.map_or((0, 0, 0o755), |model| (model.uid(), model.gid(), model.mode() & 0o7777));
        std::os::unix::fs::lchown(&upper, Some(uid), Some(gid))?;
        fs::set_permissions(&upper, fs::Permissions::from_mode(mode))
    };
    alike().map_err(|error| failed("state directory", &error))?;
    mount(lower, &upper, &work, at).map_err(|error| {
        if error.raw_os_error() == Some(libc::ENODEV) {
            return Refused::new(
                Reason::Internal,
                "rootfs: this kernel has no overlay file system: load it (modprobe overlay)",
            );
        }
        failed(&format!("overlay of `{about}` with an upper layer in {}", dirs.state.display()), &error)
    })
}

fn mount(lower: &[BorrowedFd<'_>], upper: &Path, work: &Path, at: &Path) -> io::Result<()> {
    let (dir, work) = (open_dir(upper)?, open_dir(work)?);
    overlay(lower, Some(Upper { dir: dir.as_fd(), work: work.as_fd() }), open_dir(at)?.as_fd())
}
