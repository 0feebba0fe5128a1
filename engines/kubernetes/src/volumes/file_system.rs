//! Creates and finds the tmpfs of a volume, which has one empty file for each secret.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use executor_sys::mount;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags, fstat, mkdirat, open, openat, statat, statx,
};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, UnmountFlags};

/// Source of the mount, as `/proc/mounts` shows it.
const SOURCE: &str = "executor-csi";
/// Maximum number of mounts that are removed from one path.
const MOUNTS_MAX: usize = 16;

/// Device and inode of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) device: u64,
    inode: u64,
}

/// Creates a detached, read-only volume. `paths` has all paths in the volume, directories before their entries. The
/// paths in `files` become empty files.
pub(super) fn create<'a>(paths: BTreeSet<&str>, files: impl Iterator<Item = &'a str>) -> io::Result<OwnedFd> {
    let files: BTreeSet<_> = files.collect();
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let root = mount::detached("tmpfs", SOURCE, &[("mode", Some("755")), ("size", Some("4096"))], attributes)?;
    for path in paths {
        match files.contains(path) {
            true => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                drop(openat(&root, path, flags, Mode::from_raw_mode(0o444))?);
            }
            false => mkdirat(&root, path, Mode::from_raw_mode(0o755))?,
        }
    }
    mount::reconfigure(root.as_fd(), &[("ro", None)])?;
    Ok(root)
}

pub(super) fn device(volume: &OwnedFd) -> io::Result<u64> {
    Ok(fstat(volume)?.st_dev)
}

/// Mounts a volume at a path. Creates the directory if it is missing; its parent directory must exist.
pub(super) fn attach(volume: &OwnedFd, target: &Path) -> io::Result<()> {
    match rustix::fs::mkdir(target, Mode::from_raw_mode(0o750)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let target = open(target, directory_flags(), Mode::empty())?;
    mount::attach(volume.as_fd(), target.as_fd())
}

fn directory_flags() -> OFlags {
    OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

/// Returns the device of the file system that is mounted at a path, or `None` if the path is not a mount point.
pub(super) fn root(target: &Path) -> io::Result<Option<u64>> {
    let attributes = statx(CWD, target, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)?;
    let is_root = attributes.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    let device = rustix::fs::makedev(attributes.stx_dev_major, attributes.stx_dev_minor);
    Ok(is_root.then_some(device))
}

/// Removes all mounts at a path.
pub(super) fn unmount(target: &Path) -> io::Result<()> {
    for _ in 0..MOUNTS_MAX {
        match root(target) {
            Ok(Some(_)) => rustix::mount::unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?,
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Err(Errno::BUSY.into())
}

/// Returns the device and inode of a path, following symbolic links like a container's mounts.
pub(super) fn locate(path: &Path) -> io::Result<Place> {
    let file = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fstat(file)?;
    Ok(Place { device: stat.st_dev, inode: stat.st_ino })
}

/// Finds the file with this device and inode in the volume at `target`. Returns one of `paths`, an empty string for the
/// volume's root, or `None` if nothing matches.
pub(super) fn find(target: &Path, paths: BTreeSet<&str>, place: Place) -> io::Result<Option<String>> {
    let root = open(target, directory_flags(), Mode::empty())?;
    if fstat(&root)?.st_ino == place.inode {
        return Ok(Some(String::new()));
    }
    for path in paths {
        let stat = statat(&root, path, AtFlags::SYMLINK_NOFOLLOW)?;
        if (stat.st_dev, stat.st_ino) == (place.device, place.inode) {
            return Ok(Some(path.to_owned()));
        }
    }
    Ok(None)
}
