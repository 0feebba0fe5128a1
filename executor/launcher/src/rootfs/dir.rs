//! `dir:/absolute/path`: overlayfs over a prepared directory that is never written to.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use executor_core::protocol::{Reason, Refused};
use executor_core::validate::Violation;
use executor_sys::mount::{attach, open_dir};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};

use super::failed;
use crate::dirs::{Dirs, plain};

/// Mounts the overlay. The upper layer lies in the container's state directory and goes with the container, so
/// that nothing of it needs to reach the disk (`volatile`).
pub(super) fn assemble(lower: &Path, allowed: &[PathBuf], at: &Path, dirs: &Dirs) -> Result<(), Refused> {
    let violation = |why: String| Refused::of_fields(Reason::Precondition, &[Violation::new("rootfs", why)]);
    let opened = open_dir(lower).map_err(|error| violation(format!("`dir:{}`: {}", lower.display(), plain(&error))))?;
    // Where links lead is what the operator allowed, or not. From here on the directory is what was opened: whoever
    // exchanges it for a link, or a directory above it, is too late.
    let held = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    let lower = &std::fs::read_link(&held).map_err(|error| failed("rootfs", &error))?;
    if !allowed.is_empty() && !allowed.iter().any(|root| lower.starts_with(root)) {
        let why =
            format!("it leads to {}, which is below none of this daemon's configured rootfs_dirs", lower.display());
        return Err(violation(why));
    }
    let (upper, work) = (dirs.state.join("upper"), dirs.state.join("work"));
    for layer in [&upper, &work] {
        dirs.private(layer).map_err(|error| failed("state directory", &error))?;
    }
    let mode = std::fs::metadata(&held).map_err(|error| failed("rootfs", &error))?.permissions();
    std::fs::set_permissions(&upper, mode).map_err(|error| failed("state directory", &error))?;
    overlay(&held, &upper, &work, at).map_err(|error| {
        if error.raw_os_error() == Some(libc::ENODEV) {
            return Refused::new(
                Reason::Internal,
                "rootfs: this kernel has no overlay file system: load it (modprobe overlay)",
            );
        }
        let state = dirs.state.display();
        failed(&format!("overlay of `dir:{}` with an upper layer in {state}", lower.display()), &error)
    })
}

fn overlay(lower: &Path, upper: &Path, work: &Path, at: &Path) -> io::Result<()> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", "executor-rootfs")?;
    fsconfig_set_string(&context, "lowerdir", lower)?;
    fsconfig_set_string(&context, "upperdir", upper)?;
    fsconfig_set_string(&context, "workdir", work)?;
    fsconfig_set_flag(&context, "volatile")?;
    fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    attach(mount.as_fd(), open_dir(at)?.as_fd())
}
