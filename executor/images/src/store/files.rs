//! Reads the store's files within limits, and replaces them as a whole.

use std::fs::{DirBuilder, File};
use std::io::Read as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use executor_sys::replace::{PARTIAL, Replacement};

use crate::error::ImageError;

pub(crate) fn make_dir(path: &Path) -> Result<(), ImageError> {
    let made = DirBuilder::new().mode(0o700).recursive(true).create(path);
    made.map_err(|error| ImageError::io("create directory", path, error))
}

/// Creates the directory of a file if it is missing. The directory is missing if the disk was full when the store was
/// opened.
pub(crate) fn make_parent(path: &Path) -> Result<(), ImageError> {
    path.parent().filter(|dir| !dir.is_dir()).map_or(Ok(()), make_dir)
}

/// Lists the files of a directory. Returns an empty list if the directory does not exist. Removes unfinished files.
pub(crate) fn list(dir: &Path) -> Result<Vec<PathBuf>, ImageError> {
    let failed = |error| ImageError::io("read directory", dir, error);
    let mut paths = Vec::new();
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(paths),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if path.as_os_str().as_encoded_bytes().ends_with(PARTIAL.as_bytes()) {
            remove(&path);
        } else {
            paths.push(path);
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

/// Reads a whole file of at most `most` bytes.
pub(crate) fn read(path: &Path, most: u64) -> Result<Vec<u8>, ImageError> {
    let failed = |error| ImageError::io("read", path, error);
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > most {
        let (what, is) = (path.display().to_string(), bytes.len() as u64);
        return Err(ImageError::TooLarge { what, is, most, unit: "bytes" });
    }
    Ok(bytes)
}

/// Atomically creates or replaces a file by rename. If `durable` is true, also syncs the file to disk.
pub(crate) fn replace(path: &Path, bytes: &[u8], durable: bool) -> Result<(), ImageError> {
    make_parent(path)?;
    let replacement = Replacement::from_path(path);
    let written = if durable { replacement.durable() } else { replacement }.write(bytes);
    written.map(drop).map_err(|error| ImageError::io("write", path, error))
}

/// Removes a file. An error is logged; a later run of the caller tries again.
pub(crate) fn remove(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "cannot remove a file");
        }
        _ => {}
    }
}

/// Removes a file and syncs its directory.
pub(crate) fn remove_durably(path: &Path) -> Result<(), ImageError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.and_then(|()| sync_parent(path)),
    }
    .map_err(|error| ImageError::io("remove", path, error))
}

fn sync_parent(path: &Path) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}
