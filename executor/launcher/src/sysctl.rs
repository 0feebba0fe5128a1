//! Reads and writes files below /proc/sys, through a detached proc file system (see `shim/files/sysctls.rs`).

use std::io::{self, Read as _, Write as _};
use std::os::fd::BorrowedFd;
use std::path::Path;

use executor_sys::mount::{Follow, open_in_root};
use rustix::fs::{Mode, OFlags};

/// Maximum number of bytes of a value that are read.
const VALUE_MAX: u64 = 4096;

/// Writes a setting of the calling process's namespaces. `path` is relative to /proc/sys.
///
/// # Errors
/// Returns `NotFound` if the kernel does not have the setting. Returns an error if the kernel rejects the value.
pub(crate) fn write(proc: BorrowedFd<'_>, path: &str, value: &str) -> io::Result<()> {
    let file = open_in_root(proc, &Path::new("sys").join(path), OFlags::WRONLY, Mode::empty(), Follow::NoLinks)?;
    std::fs::File::from(file).write_all(value.as_bytes())
}

/// Reads a setting of the calling process's namespaces. `path` is relative to /proc/sys.
///
/// # Errors
/// Returns `NotFound` if the kernel does not have the setting.
pub(crate) fn read(proc: BorrowedFd<'_>, path: &str) -> io::Result<String> {
    let file = open_in_root(proc, &Path::new("sys").join(path), OFlags::RDONLY, Mode::empty(), Follow::NoLinks)?;
    let mut value = String::new();
    std::fs::File::from(file).take(VALUE_MAX).read_to_string(&mut value)?;
    Ok(value)
}
