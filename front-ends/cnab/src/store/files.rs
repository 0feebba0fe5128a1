//! Writes the store's files atomically, and reads them with size limits.
//!
//! Writing is similar to `executor_sys::replace`, on which front ends do not depend. But the temporary name is random,
//! because two programs may write at the same time.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use super::StoreError;

/// Prefix of partial files; no stored file begins with a dot.
const PARTIAL: &str = ".partial-";
/// Value of `O_NOFOLLOW` on Linux, which depends on the architecture.
const NO_FOLLOW: i32 = if cfg!(target_arch = "aarch64") { 0o100_000 } else { 0o400_000 };
/// Value of `O_NONBLOCK`, with which opening a FIFO does not wait for a writer.
const NON_BLOCK: i32 = 0o4000;

fn failed(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { path, doing, source }
}

/// Writes a file atomically, replacing an existing file.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    make_dir(directory)?;
    let mut random = [0; 8];
    getrandom::fill(&mut random)
        .map_err(|_| failed(path, "be written")(io::Error::other("the system's random number generator failed")))?;
    let partial = directory.join(format!("{PARTIAL}{}", hex::encode(random)));
    let result = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&partial, path)
    })();
    if let Err(error) = result {
        let _ = fs::remove_file(&partial); // best effort: a hidden file may remain
        return Err(failed(path, "be written")(error));
    }
    sync_dir(directory)
}

/// Creates a directory and its parents, and syncs the parent of each created directory.
fn make_dir(directory: &Path) -> Result<(), StoreError> {
    if directory.is_dir() {
        return Ok(());
    }
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        make_dir(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => {
            made.map_err(failed(directory, "be created"))?;
            parent.map_or(Ok(()), sync_dir)
        }
    }
}

fn sync_dir(directory: &Path) -> Result<(), StoreError> {
    File::open(directory).and_then(|file| file.sync_all()).map_err(failed(directory, "be synced"))
}

/// Reads a file; `None` if it does not exist.
pub(super) fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
    let file = match OpenOptions::new().read(true).custom_flags(NO_FOLLOW | NON_BLOCK).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(failed(path, "be read"))?,
    };
    // Refuse other files: reading a FIFO could block.
    if !file.metadata().map_err(failed(path, "be read"))?.is_file() {
        return Err(failed(path, "be read")(io::Error::other("not a regular file")));
    }
    let mut content = Vec::new();
    file.take(limit + 1).read_to_end(&mut content).map_err(failed(path, "be read"))?;
    if content.len() as u64 > limit {
        Err(StoreError::TooLarge { path: path.into(), limit })
    } else {
        Ok(Some(content))
    }
}

/// Returns the names in a directory that do not begin with a dot; an empty list if the directory does not exist.
pub(super) fn names(directory: &Path) -> Result<Vec<String>, StoreError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed(directory, "be read"))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed(directory, "be read"))?;
        if let Ok(name) = entry.file_name().into_string()
            && !name.starts_with('.')
        {
            names.push(name);
        }
    }
    Ok(names)
}

/// Locks a file, which is created if it does not exist. Returns `None` if another process holds the lock.
pub(super) fn lock(path: &Path) -> Result<Option<File>, StoreError> {
    make_dir(path.parent().unwrap_or(Path::new(".")))?;
    let file =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).custom_flags(NO_FOLLOW).open(path);
    let file = file.map_err(failed(path, "be opened"))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(error)) => Err(failed(path, "be locked")(error)),
    }
}

/// Removes a directory and its content, if it exists.
pub(super) fn remove_dir(directory: &Path) -> Result<(), StoreError> {
    gone(directory, fs::remove_dir_all(directory))
}

/// Removes a file, if it exists.
pub(super) fn remove_file(path: &Path) -> Result<(), StoreError> {
    gone(path, fs::remove_file(path))
}

fn gone(path: &Path, removed: io::Result<()>) -> Result<(), StoreError> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(path, "be removed")(error)),
        Ok(()) => sync_dir(path.parent().unwrap_or(Path::new("."))),
    }
}
