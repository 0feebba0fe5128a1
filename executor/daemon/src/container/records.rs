//! Reads what shims write: a container's record while it lives, its exit record afterwards.
//!
//! The files are read whole at each news of a shim. They are small, in memory or in the page cache, and replaced
//! by rename, so that a read is never torn. They come from a process of more privilege than ours and are checked
//! only for what a newer version or a broken disk could have done to them.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use executor_core::ident::ContainerId;
use executor_core::record::{ContainerRecord, ExitRecord, RECORD_MAX, RECORD_VERSION};
use serde::de::DeserializeOwned;

use crate::paths::Paths;

/// Why a record that is there cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It cannot be read.
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] std::io::Error),
    /// Larger than any that is written.
    #[error("{} has more than {RECORD_MAX} bytes", .0.display())]
    TooLarge(PathBuf),
    /// Not in its form.
    #[error("{} is no record", .0.display())]
    Form(PathBuf, #[source] serde_json::Error),
    /// Written by a newer version.
    #[error("{} has version {}; this executord knows {RECORD_VERSION}", .0.display(), .1)]
    Newer(PathBuf, u32),
    /// Of another container.
    #[error("{} is the record of {}", .0.display(), .1)]
    Other(PathBuf, ContainerId),
}

/// The record of a container that has a shim; `None` where there is none.
///
/// # Errors
/// See [`RecordError`].
pub fn live(paths: &Paths, id: &ContainerId) -> Result<Option<ContainerRecord>, RecordError> {
    let path = paths.live_record(id);
    let record: Option<ContainerRecord> = read(&path)?;
    record.map(|record| check(&path, id, &record).map(|()| record)).transpose()
}

/// The record of a container's end; `None` where there is none (yet).
///
/// # Errors
/// See [`RecordError`].
pub fn exit(paths: &Paths, id: &ContainerId) -> Result<Option<ExitRecord>, RecordError> {
    let path = paths.exit_record(id);
    let record: Option<ExitRecord> = read(&path)?;
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
