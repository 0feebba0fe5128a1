//! Manages partially received blobs and archives. A blob is used only after the digest of its whole content has been
//! verified, including bytes from an earlier attempt.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime};

use executor_core::image::Digest;
use executor_sys::mutex::locked;
use rustix::fs::OFlags;
use tokio::sync::OwnedMutexGuard;

use super::files;
use crate::error::ImageError;

/// Name prefix of uploaded archives.
const UPLOAD: &str = "upload-";
/// Name suffix of partial blobs.
const PARTIAL: &str = ".partial";

pub(crate) struct Ingest {
    dir: PathBuf,
    locks: Mutex<HashMap<PathBuf, Weak<tokio::sync::Mutex<()>>>>,
}

/// The file of a blob that is being fetched. While this value exists, no other fetch of this process writes to the
/// file.
pub(crate) struct Partial {
    path: PathBuf,
    lock: OwnedMutexGuard<()>,
}

/// The file of a complete, verified blob. Another pull of the same blob may use it at the same time.
pub(crate) struct Complete {
    path: PathBuf,
    lock: Arc<tokio::sync::Mutex<()>>,
}

/// A temporary file that is removed on drop.
pub(crate) struct Upload {
    pub(crate) path: PathBuf,
}

impl Drop for Upload {
    fn drop(&mut self) {
        files::remove(&self.path);
    }
}

impl Ingest {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir, locks: Mutex::default() }
    }

    /// Locks the file of a blob; waits while another fetch writes to it. The file name contains the size, so that a
    /// request with another size for the same digest cannot truncate the file.
    pub(crate) async fn partial(&self, digest: &Digest, size: u64) -> Partial {
        let path = self.dir.join(format!("{}-{}-{size}{PARTIAL}", digest.algorithm().name(), digest.hex()));
        let lock = {
            let mut locks = locked(&self.locks);
            locks.retain(|_, lock| lock.strong_count() > 0);
            let there = locks.get(&path).and_then(Weak::upgrade);
            there.unwrap_or_else(|| {
                let lock = Arc::new(tokio::sync::Mutex::new(()));
                locks.insert(path.clone(), Arc::downgrade(&lock));
                lock
            })
        };
        Partial { path, lock: lock.lock_owned().await }
    }

    /// Creates a file for an archive that a client sends.
    pub(crate) fn upload(&self) -> Result<(Upload, File), ImageError> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| ImageError::Internal(error.to_string()))?;
        let path = self.dir.join(format!("{UPLOAD}{}", hex::encode(random)));
        files::make_parent(&path)?;
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(|error| ImageError::io("create", &path, error))?;
        Ok((Upload { path }, file))
    }

    /// Removes archives of an earlier daemon process, whose clients are disconnected.
    pub(super) fn clear_uploads(&self) -> Result<(), ImageError> {
        for path in files::list(&self.dir)? {
            if file_name(&path).starts_with(UPLOAD) {
                files::remove(&path);
            }
        }
        Ok(())
    }

    /// Returns partial blobs that were not written to for `age`, with their sizes.
    pub(crate) fn abandoned(&self, age: Duration, now: SystemTime) -> Result<Vec<(PathBuf, u64)>, ImageError> {
        let mut old = Vec::new();
        for path in files::list(&self.dir)? {
            let Ok(metadata) = std::fs::symlink_metadata(&path) else { continue };
            let written = metadata.modified().unwrap_or(now);
            if file_name(&path).ends_with(PARTIAL) && now.duration_since(written).is_ok_and(|since| since >= age) {
                old.push((path, metadata.len()));
            }
        }
        let locks = locked(&self.locks);
        old.retain(|(path, _)| locks.get(path).is_none_or(|lock| lock.strong_count() == 0));
        Ok(old)
    }
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

impl Partial {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file for reading and writing without truncating it.
    pub(crate) fn open(&self) -> Result<File, ImageError> {
        let options = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .clone();
        files::make_parent(&self.path)?;
        options.open(&self.path).map_err(|error| ImageError::io("open", &self.path, error))
    }

    pub(crate) fn remove(&self) {
        files::remove(&self.path);
    }

    /// Marks the file as complete. The file is unlocked when `self` is dropped, so that a pull that waits for its lower
    /// layers does not delay other pulls of this blob.
    pub(crate) fn complete(&self) -> Complete {
        Complete { path: self.path.clone(), lock: Arc::clone(OwnedMutexGuard::mutex(&self.lock)) }
    }
}

impl Complete {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file. If another pull is reading the file, that pull removes the file instead.
    pub(crate) fn remove(&self) {
        if let Ok(_alone) = self.lock.try_lock() {
            files::remove(&self.path);
        }
    }
}
