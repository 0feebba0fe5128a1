//! Reads the records that shims write: a container's record while it lives, its exit record afterwards.
//!
//! The files are read whole at each report of a shim. They are small, in memory or in the page cache, and replaced by
//! rename, so that a read is never torn. They come from a process with more privilege than the daemon and are checked
//! only for what a newer version or a broken disk could have done to them.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use executor_core::ident::ContainerId;
use executor_core::record::{ContainerRecord, ExitRecord, RECORD_MAX, RECORD_VERSION};
use serde::de::DeserializeOwned;

use crate::paths::Paths;

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file cannot be read.
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] std::io::Error),
    /// The file is larger than any record.
    #[error("{} has more than {RECORD_MAX} bytes, the limit of a record", .0.display())]
    TooLarge(PathBuf),
    /// The file is malformed.
    #[error("{} is not a valid record", .0.display())]
    Form(PathBuf, #[source] serde_json::Error),
    /// A newer version wrote the record.
    #[error("{} has version {}; this executord reads versions up to {RECORD_VERSION}", .0.display(), .1)]
    Newer(PathBuf, u32),
    /// The record is that of another container.
    #[error("{} is the record of container {}", .0.display(), .1)]
    Other(PathBuf, ContainerId),
}

/// Reads the record of a container with a shim; `None` where there is none.
///
/// # Errors
/// See [`RecordError`].
pub fn live(paths: &Paths, id: &ContainerId) -> Result<Option<ContainerRecord>, RecordError> {
    let path = paths.live_record(id);
    let record: Option<ContainerRecord> = read(&path)?;
    record.map(|record| check(&path, id, &record).map(|()| record)).transpose()
}

/// Reads the exit record of a container; `None` where there is none (yet). Exit records are not synced: what a power cut left
/// of one does not count, and is told in the log.
///
/// # Errors
/// See [`RecordError`].
pub fn exit(paths: &Paths, id: &ContainerId) -> Result<Option<ExitRecord>, RecordError> {
    let path = paths.exit_record(id);
    let record: Option<ExitRecord> = match read(&path) {
        Err(error @ RecordError::Form(..)) => {
            let error = crate::chain(&error);
            tracing::error!(container = %id, error, "the exit record does not count");
            None
        }
        record => record?,
    };
    record.map(|record| check(&path, id, &record.container).map(|()| record)).transpose()
}

fn check(path: &Path, id: &ContainerId, record: &ContainerRecord) -> Result<(), RecordError> {
    if record.version > RECORD_VERSION {
        return Err(RecordError::Newer(path.to_owned(), record.version));
    }
    if record.plan.id != *id {
        return Err(RecordError::Other(path.to_owned(), record.plan.id.clone()));
    }
    Ok(())
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, RecordError> {
    let unreadable = |error| RecordError::Read(path.to_owned(), error);
    let file = match File::open(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        other => other.map_err(unreadable)?,
    };
    let size = file.metadata().map_err(unreadable)?.len();
    if size > RECORD_MAX {
        return Err(RecordError::TooLarge(path.to_owned()));
    }
    let mut bytes = Vec::with_capacity(size as usize);
    file.take(RECORD_MAX).read_to_end(&mut bytes).map_err(unreadable)?;
    serde_json::from_slice(&bytes).map(Some).map_err(|error| RecordError::Form(path.to_owned(), error))
}
