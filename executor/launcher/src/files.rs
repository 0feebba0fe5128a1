//! Creates the executor's files and directories with modes, reads and locks files, and removes trees.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use executor_sys::mount::open_dir;
use executor_sys::open::read_whole;
use executor_sys::tree;
use rustix::fs::{FlockOperation, IFlags, flock, ioctl_getflags, ioctl_setflags};
use serde::de::DeserializeOwned;

use crate::errors::at;

/// Pause between two attempts to lock a file: flock(2) has no timeout.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Creates a directory with exactly this mode.
///
/// # Errors
/// Returns an error if the directory exists or the disk is full.
pub(crate) fn make_dir(path: &Path, mode: u32, gid: Option<u32>) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path).map_err(|error| at(path, &error))?;
    if gid.is_some() {
        std::os::unix::fs::lchown(path, Some(0), gid)?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Creates a directory with this mode, if it does not exist.
///
/// # Errors
/// Returns an error if the disk is full.
pub(crate) fn ensure_dir(path: &Path, mode: u32) -> io::Result<()> {
    match make_dir(path, mode, None) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Makes ext4 store each subdirectory of `dir` far from the others. Has no effect on other file systems. Without a
/// journal, ext4 does not reuse an inode for a minute after its deletion, and would search all inodes of earlier
/// containers for each new file (docs/adr/0066-container-directories-are-spread-over-the-disk.md).
///
/// # Errors
/// Returns an error if the directory cannot be opened.
pub(crate) fn spread_subdirectories(dir: &Path) -> io::Result<()> {
    let opened = File::open(dir).map_err(|error| at(dir, &error))?;
    // Only the speed depends on this flag.
    let _ = ioctl_getflags(&opened).and_then(|flags| ioctl_setflags(&opened, flags | IFlags::TOPDIR));
    Ok(())
}

/// Removes a directory tree that a container may have created. Such a tree can have any depth, and the standard library
/// needs a descriptor and a stack frame for each level.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    match open_dir(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        parent => tree::remove(parent?.as_fd(), name),
    }
}

/// Returns the UTF-8 names in a directory. Returns no names if the directory does not exist.
///
/// # Errors
/// Returns an error if the directory cannot be read.
pub(crate) fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?.collect::<io::Result<Vec<_>>>()?,
    };
    Ok(entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

/// Converts the `NotFound` error of a removal to success.
pub(crate) fn ignore_not_found(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Reads a JSON file of at most `bytes_max` bytes. Does not follow a link.
///
/// # Errors
/// Returns an error if the file does not exist, is larger than `bytes_max`, or has unexpected content (`InvalidData`,
/// `UnexpectedEof`).
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path, bytes_max: u64) -> io::Result<T> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
    Ok(serde_json::from_slice(&read_whole(file, bytes_max)?)?)
}

/// Locks a file exclusively. If another process holds the lock, retries for `timeout`.
///
/// # Errors
/// Returns `WOULDBLOCK` if the lock is still held after `timeout`.
pub(crate) fn lock(file: &File, timeout: Duration) -> rustix::io::Result<()> {
    let deadline = Instant::now() + timeout;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(LOCK_RETRY_INTERVAL),
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Magic number of ext2, ext3 and ext4 (`linux/magic.h`).
    const EXT4_SUPER_MAGIC: i64 = 0xef53;

    #[test]
    fn subdirectories_are_spread_on_ext4() {
        let home = tempfile::tempdir().unwrap();
        spread_subdirectories(home.path()).unwrap();
        let dir = File::open(home.path()).unwrap();
        let kind = rustix::fs::fstatfs(&dir).unwrap().f_type;
        let is_spread = ioctl_getflags(&dir).is_ok_and(|flags| flags.contains(IFlags::TOPDIR));
        assert!(is_spread || kind != EXT4_SUPER_MAGIC, "file system {kind:#x}");
        let missing = spread_subdirectories(&home.path().join("none")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
