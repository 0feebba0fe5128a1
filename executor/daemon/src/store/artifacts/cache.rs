//! Stores the files of downloads: downloads in progress, and the cache of artifacts by key.
//!
//! ```text
//! NAME.part      a download in progress, or an artifact that is being added to the cache
//! DIGEST         an artifact: the digest covers its location (the digest of a URL without its query) and its key
//! DIGEST.json    validators and size of the artifact, written last and removed first. An artifact without this file
//!                counts as missing
//! ```
//! No URL is stored. An artifact is used only after its server has confirmed that it is current. The least recently
//! used artifacts are removed when the size exceeds the budget.

use std::collections::HashMap;
use std::fs::{self, File, FileTimes};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use executor_sys::mutex::locked;
use executor_transfers::job::Validators;
use executor_transfers::key_digest;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

const PART: &str = "part";
const MARK: &str = "json";

/// Downloaded files and the artifact cache.
#[derive(Debug)]
pub(crate) struct Cache {
    dir: PathBuf,
    bytes_max: u64,
    /// Locks of downloads by the digest of location and key.
    held: Mutex<HashMap<String, Arc<AsyncMutex<()>>>>,
}

/// A downloaded file.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) file: File,
    pub(crate) validators: Validators,
    /// Path of a file that is not in the cache yet.
    part: Option<PartialFile>,
}

/// A file that is removed on drop, except if it was moved into the cache.
#[derive(Debug)]
struct PartialFile(PathBuf);

impl Drop for PartialFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0); // the file may have moved into the cache
    }
}

/// Exclusive access to the artifact of a location and a key, released on drop.
#[derive(Debug)]
pub(crate) struct KeyLock {
    digest: String,
    _lock: OwnedMutexGuard<()>,
}

impl std::ops::Deref for KeyLock {
    type Target = str;

    fn deref(&self) -> &str {
        &self.digest
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct ArtifactMetadata {
    validators: Validators,
    bytes: u64,
}

impl Cache {
    /// Opens the directory, and removes incomplete files.
    pub(crate) fn open(dir: PathBuf, bytes_max: u64) -> Self {
        let cache = Self { dir, bytes_max, held: Mutex::default() };
        if let Err(error) = cache.sweep()
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(dir = %cache.dir.display(), %error, "cannot clean up the download directory");
        }
        cache
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns true if the cache is enabled.
    pub(crate) fn is_used(&self) -> bool {
        self.bytes_max > 0
    }

    /// Returns the number of artifacts, and their total size in bytes.
    pub(crate) fn size(&self) -> (u64, u64) {
        let (mut files, mut bytes) = (0, 0);
        for found in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let path = found.path();
            if path.extension().is_some_and(|extension| extension == MARK) {
                files += 1;
                bytes += fs::metadata(path.with_extension("")).map_or(0, |artifact| artifact.len());
            }
        }
        (files, bytes)
    }

    fn sweep(&self) -> io::Result<()> {
        for found in fs::read_dir(&self.dir)? {
            let path = found?.path();
            let is_whole = match path.extension().and_then(|extension| extension.to_str()) {
                None => path.with_extension(MARK).exists(),
                Some(MARK) => path.with_extension("").exists() && self.is_used(),
                Some(_) => false,
            };
            if !is_whole {
                fs::remove_file(&path)?;
            }
        }
        self.evict(0)
    }

    /// Waits until no other download holds the key of this location. Each location has its own artifacts per key, so
    /// that a slow server delays only downloads from this server.
    pub(crate) async fn hold(&self, place: &str, key: &str) -> KeyLock {
        let digest = key_digest(&format!("{place} {key}"));
        let lock = {
            let mut held = locked(&self.held);
            held.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(held.entry(digest.clone()).or_default())
        };
        KeyLock { digest, _lock: lock.lock_owned().await }
    }

    /// Creates a file for a download.
    pub(crate) fn staging(&self) -> io::Result<Entry> {
        let path = self.dir.join(uuid::Uuid::new_v4().to_string()).with_extension(PART);
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        Ok(Entry { file, validators: Validators::default(), part: Some(PartialFile(path)) })
    }

    /// Returns the cached artifact of a digest, if the artifact is complete. The caller must hold the digest's lock.
    pub(crate) fn get(&self, digest: &str) -> Option<Entry> {
        let path = self.dir.join(digest);
        let mark: ArtifactMetadata = serde_json::from_slice(&fs::read(path.with_extension(MARK)).ok()?).ok()?;
        let file = File::open(&path).ok()?;
        let is_whole = file.metadata().is_ok_and(|found| found.len() == mark.bytes);
        is_whole.then_some(Entry { file, validators: mark.validators, part: None })
    }

    /// Stores an artifact under a digest, or marks a cached artifact as just used. The caller must hold the digest's
    /// lock.
    pub(crate) fn store(&self, digest: &str, entry: &Entry) {
        let path = self.dir.join(digest);
        let kept = match &entry.part {
            None => File::open(path.with_extension(MARK))
                .and_then(|mark| mark.set_times(FileTimes::new().set_modified(SystemTime::now()))),
            Some(part) => self.put(&path, &part.0, entry),
        };
        if let Err(error) = kept {
            tracing::warn!(%error, digest, "cannot add the download to the cache, or mark it as used");
        }
    }

    fn put(&self, path: &Path, part: &Path, entry: &Entry) -> io::Result<()> {
        let bytes = entry.file.metadata()?.len();
        if bytes > self.bytes_max || !entry.validators.can_be_asked() {
            return Ok(());
        }
        let mark = path.with_extension(MARK);
        match fs::remove_file(&mark) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.evict(bytes)?;
        fs::rename(part, path)?;
        let staged = part.with_extension("mark.part");
        let document = ArtifactMetadata { validators: entry.validators.clone(), bytes };
        fs::write(&staged, serde_json::to_vec(&document)?)?;
        fs::rename(staged, mark)
    }

    /// Removes the least recently used artifacts until `room` bytes are free.
    fn evict(&self, room: u64) -> io::Result<()> {
        let mut marks = Vec::new();
        for found in fs::read_dir(&self.dir)? {
            let path = found?.path();
            if path.extension().is_some_and(|extension| extension == MARK) {
                let bytes = fs::metadata(path.with_extension("")).map_or(0, |artifact| artifact.len());
                marks.push((fs::metadata(&path)?.modified()?, path, bytes));
            }
        }
        marks.sort();
        let mut bytes: u64 = marks.iter().map(|(.., bytes)| bytes).sum();
        for (_, mark, size) in marks {
            if bytes.saturating_add(room) <= self.bytes_max {
                break;
            }
            fs::remove_file(&mark)?;
            fs::remove_file(mark.with_extension(""))?;
            bytes -= size;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _, Write as _};

    use super::*;

    fn entry(cache: &Cache, content: &str, etag: Option<&str>) -> Entry {
        let mut entry = cache.staging().unwrap();
        entry.file.write_all(content.as_bytes()).unwrap();
        entry.validators.etag = etag.map(str::to_owned);
        entry
    }

    fn content(cache: &Cache, digest: &str) -> Option<String> {
        let mut text = String::new();
        let mut entry = cache.get(digest)?;
        entry.file.rewind().unwrap();
        entry.file.read_to_string(&mut text).unwrap();
        Some(text)
    }

    fn names(cache: &Cache) -> usize {
        fs::read_dir(&cache.dir).unwrap().count()
    }

    #[tokio::test]
    async fn artifacts_are_kept_within_the_budget() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path().to_owned(), 10);
        for (digest, text) in [("a", "12345"), ("b", "1234"), ("a", "54321")] {
            cache.store(digest, &entry(&cache, text, Some("e")));
        }
        assert_eq!((content(&cache, "a").as_deref(), content(&cache, "b").as_deref()), (Some("54321"), Some("1234")));
        // Eviction depends on the last use, not on the age.
        let earlier = SystemTime::now() - std::time::Duration::from_secs(60);
        let of_a = File::open(dir.path().join("a.json")).unwrap();
        of_a.set_times(FileTimes::new().set_modified(earlier)).unwrap();
        cache.store("a", &cache.get("a").unwrap());
        File::open(dir.path().join("b.json")).unwrap().set_times(FileTimes::new().set_modified(earlier)).unwrap();
        cache.store("c", &entry(&cache, "123", Some("e")));
        assert_eq!((content(&cache, "b"), content(&cache, "a").as_deref()), (None, Some("54321")));
        // Artifacts that are too large or have no validators are not stored.
        cache.store("d", &entry(&cache, "12345678901", Some("e")));
        cache.store("e", &entry(&cache, "1", None));
        assert!(cache.get("d").is_none() && cache.get("e").is_none());
        assert_eq!(names(&cache), 4, "no file of a download is left");
        let again = Cache::open(dir.path().to_owned(), 5);
        assert!(again.get("a").is_some() != again.get("c").is_some(), "a smaller budget holds from the start");
    }

    #[tokio::test]
    async fn incomplete_artifacts_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["x.part", "without-mark", "without-artifact.json"] {
            fs::write(dir.path().join(name), "{}").unwrap();
        }
        let cache = Cache::open(dir.path().to_owned(), 100);
        assert_eq!(names(&cache), 0);
        cache.store("a", &entry(&cache, "12345", Some("e")));
        File::options().write(true).open(dir.path().join("a")).unwrap().set_len(2).unwrap();
        assert!(cache.get("a").is_none());
        let missing = Cache::open(dir.path().join("missing"), 100);
        assert!(missing.get("a").is_none());
    }

    #[tokio::test]
    async fn cache_key_has_one_holder() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path().to_owned(), 100);
        let first = cache.hold("place", "key").await;
        let others = [cache.hold("place", "other").await, cache.hold("elsewhere", "key").await];
        assert!(others.iter().all(|other| **other != *first));
        let second = tokio::time::timeout(std::time::Duration::from_millis(20), cache.hold("place", "key")).await;
        assert!(second.is_err());
        drop(first);
        assert_eq!(cache.hold("place", "key").await.len(), 64);
    }
}
