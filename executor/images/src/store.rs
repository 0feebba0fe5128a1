//! Stores images: records, manifests and configurations by digest, and partial blobs.
//!
//! ```text
//!  images/records/sha256-HEX.json     one image, replaced by rename
//!  images/documents/sha256-HEX        its manifest or configuration, unmodified; verified when read
//!  images/layers/sha256-HEX           empty: a layer that was passed on for unpacking
//!  images/ingest/                     partial blobs, archives being imported
//! ```
//! A record is written last, after everything that it refers to. Files in `ingest` are not used before they are
//! verified from their first byte. Therefore, a crash leaves at most unused files, which [`crate::prune`] removes.

pub(crate) mod files;
pub(crate) mod ingest;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use executor_core::image::{DOCUMENT_MAX, Digest};
use executor_sys::mutex::locked;

use crate::error::ImageError;
use crate::hash;
use crate::record::{self, ImageRecord};
use ingest::Ingest;

/// Maximum size of a record, in bytes.
const RECORD_MAX: u64 = 1 << 20;
/// Minimum interval between two updates of an image's time of use on disk, in nanoseconds.
const LAST_USED_INTERVAL_NS: u64 = 60_000_000_000;

pub(crate) struct Store {
    dir: PathBuf,
    pub(crate) ingest: Ingest,
    inner: Arc<Mutex<StoreState>>,
}

#[derive(Default)]
struct StoreState {
    images: BTreeMap<Digest, ImageRecord>,
    /// Number of holds for each image that is about to be used.
    images_held: HashMap<Digest, usize>,
    /// Number of holds for each layer of images that are being fetched.
    layers_held: HashMap<Digest, usize>,
}

/// Protects an image or layers from removal.
pub(crate) struct StoreHold {
    inner: Arc<Mutex<StoreState>>,
    images: Vec<Digest>,
    layers: Vec<Digest>,
}

impl Drop for StoreHold {
    fn drop(&mut self) {
        let mut inner = locked(&self.inner);
        let StoreState { images_held, layers_held, .. } = &mut *inner;
        for (counts, digests) in [(images_held, &self.images), (layers_held, &self.layers)] {
            for digest in digests {
                if let Some(count) = counts.get_mut(digest) {
                    *count -= 1;
                    if *count == 0 {
                        counts.remove(digest);
                    }
                }
            }
        }
    }
}

impl Store {
    /// Opens the store and creates missing directories. On a full disk, the directories are created later, when needed.
    /// Corrupt records are removed and logged.
    pub(crate) fn open(dir: &Path) -> Result<Self, ImageError> {
        for sub in ["", "records", "documents", "layers", "ingest"] {
            match files::make_dir(&dir.join(sub)) {
                Err(error @ ImageError::NoSpace { .. }) => {
                    tracing::warn!(%error, "cannot store images until disk space is available");
                }
                made => made?,
            }
        }
        let mut inner = StoreState::default();
        for path in files::list(&dir.join("records"))? {
            match read_record(&path) {
                Ok(record) if has_documents(dir, &record) => {
                    inner.images.insert(record.digest.clone(), record);
                }
                Ok(record) => {
                    tracing::warn!(image = %record.digest, "the manifest or configuration is missing: removed the image record");
                    files::remove(&path);
                }
                Err(why) => {
                    tracing::warn!(path = %path.display(), why, "removed an image record that cannot be used");
                    files::remove(&path);
                }
            }
        }
        remove_duplicate_references(&mut inner.images);
        let kept = inner.images.values().flat_map(|record| [&record.digest, &record.config_digest]);
        let kept: BTreeSet<String> = kept.map(name).collect();
        for path in files::list(&dir.join("documents"))? {
            if !path.file_name().and_then(|name| name.to_str()).is_some_and(|name| kept.contains(name)) {
                files::remove(&path);
            }
        }
        let ingest = Ingest::new(dir.join("ingest"));
        ingest.clear_uploads()?;
        Ok(Self { dir: dir.to_owned(), ingest, inner: Arc::new(Mutex::new(inner)) })
    }

    /// Returns all images, ordered by digest.
    pub(crate) fn all(&self) -> Vec<ImageRecord> {
        locked(&self.inner).images.values().cloned().collect()
    }

    /// Returns the first image for which `is` returns true, and protects it from removal.
    pub(crate) fn hold_image(&self, is: impl Fn(&ImageRecord) -> bool) -> Option<(ImageRecord, StoreHold)> {
        let mut inner = locked(&self.inner);
        let record = inner.images.values().find(|record| is(record))?.clone();
        *inner.images_held.entry(record.digest.clone()).or_default() += 1;
        drop(inner);
        let held =
            StoreHold { inner: Arc::clone(&self.inner), images: vec![record.digest.clone()], layers: Vec::new() };
        Some((record, held))
    }

    /// Protects layers from removal.
    pub(crate) fn hold_layers(&self, layers: Vec<Digest>) -> StoreHold {
        let mut inner = locked(&self.inner);
        for layer in &layers {
            *inner.layers_held.entry(layer.clone()).or_default() += 1;
        }
        drop(inner);
        StoreHold { inner: Arc::clone(&self.inner), images: Vec::new(), layers }
    }

    /// Returns true if an image is about to be used.
    pub(crate) fn is_held(&self, digest: &Digest) -> bool {
        locked(&self.inner).images_held.contains_key(digest)
    }

    /// Returns layers that were passed on for unpacking and belong neither to an image nor to a running pull.
    pub(crate) fn orphans(&self) -> Result<Vec<Digest>, ImageError> {
        let names = files::list(&self.dir.join("layers"))?;
        let known = names.iter().filter_map(|path| digest_of(path.file_name()?.to_str()?)).collect::<BTreeSet<_>>();
        let inner = locked(&self.inner);
        let used = inner.images.values().flat_map(|record| record.layers.iter().map(|layer| &layer.diff_id));
        let used: BTreeSet<&Digest> = used.chain(inner.layers_held.keys()).collect();
        Ok(known.iter().filter(|digest| !used.contains(digest)).cloned().collect())
    }

    /// Records that a layer may exist in the layer store from now on.
    pub(crate) fn record_layer(&self, diff_id: &Digest) -> Result<(), ImageError> {
        let path = self.dir.join("layers").join(name(diff_id));
        files::make_parent(&path)?;
        std::fs::write(&path, b"").map_err(|error| ImageError::io("write", path, error))
    }

    /// Records that a layer was removed.
    pub(crate) fn remove_layer(&self, diff_id: &Digest) {
        files::remove(&self.dir.join("layers").join(name(diff_id)));
    }

    /// Reads and verifies a manifest or configuration.
    pub(crate) fn document(&self, digest: &Digest) -> Result<Vec<u8>, ImageError> {
        let bytes = files::read(&self.document_path(digest), DOCUMENT_MAX)?;
        hash::check_digest(digest, &bytes, "a stored document")?;
        Ok(bytes)
    }

    fn document_path(&self, digest: &Digest) -> PathBuf {
        self.dir.join("documents").join(name(digest))
    }

    fn record_path(&self, digest: &Digest) -> PathBuf {
        self.dir.join("records").join(format!("{}.json", name(digest)))
    }

    /// Stores an image with its manifest and configuration. Removes the record's references from other images. Keeps
    /// earlier references of the image.
    pub(crate) fn save(
        &self,
        mut record: ImageRecord,
        (manifest, configuration): (&[u8], &[u8]),
    ) -> Result<ImageRecord, ImageError> {
        let mut inner = locked(&self.inner);
        for (digest, bytes) in [(&record.digest, manifest), (&record.config_digest, configuration)] {
            // A corrupt document is replaced as well.
            if self.document(digest).is_err() {
                files::replace(&self.document_path(digest), bytes, true)?;
            }
        }
        if let Some(before) = inner.images.get(&record.digest) {
            let kept = before.references.iter().filter(|(reference, _)| !record.references.contains_key(*reference));
            let kept: Vec<_> = kept.map(|(reference, at)| (reference.clone(), *at)).collect();
            let fetched = before.fetched.iter().filter(|(reference, _)| !record.references.contains_key(*reference));
            record
                .fetched
                .extend(fetched.map(|(reference, found)| (reference.clone(), found.clone())).collect::<Vec<_>>());
            record.references.extend(kept);
            record.imported |= before.imported;
            record.last_used_at = record.last_used_at.max(before.last_used_at);
        }
        self.write(&record, true)?;
        let taken: Vec<Digest> = inner
            .images
            .values()
            .filter(|other| other.digest != record.digest)
            .filter(|other| other.references.keys().any(|reference| record.references.contains_key(reference)))
            .map(|other| other.digest.clone())
            .collect();
        for digest in taken {
            if let Some(other) = inner.images.get_mut(&digest) {
                other.keep_references(|reference| !record.references.contains_key(reference));
                self.write(other, true)?;
            }
        }
        inner.images.insert(record.digest.clone(), record.clone());
        Ok(record)
    }

    /// Removes a reference from an image.
    pub(crate) fn untag(&self, digest: &Digest, reference: &str) -> Result<(), ImageError> {
        let mut inner = locked(&self.inner);
        let Some(record) = inner.images.get_mut(digest) else { return Ok(()) };
        record.keep_references(|other| other != reference);
        self.write(record, true)
    }

    /// Updates the image's time of use.
    pub(crate) fn touch(&self, digest: &Digest, now: u64) {
        let mut inner = locked(&self.inner);
        let Some(record) = inner.images.get_mut(digest) else { return };
        if now.saturating_sub(record.last_used_at) < LAST_USED_INTERVAL_NS {
            return;
        }
        record.last_used_at = now;
        // Not critical: an older time is acceptable after a crash.
        if let Err(error) = self.write(record, false) {
            tracing::debug!(%error, "cannot record the time of an image's use");
        }
    }

    fn write(&self, record: &ImageRecord, durable: bool) -> Result<(), ImageError> {
        let json = serde_json::to_vec(record).map_err(|error| ImageError::Internal(error.to_string()))?;
        files::replace(&self.record_path(&record.digest), &json, durable)
    }

    /// Removes an image record; the layers then become [orphans](Self::orphans). Returns false if the image is held.
    pub(crate) fn remove_image(&self, digest: &Digest) -> Result<bool, ImageError> {
        let mut inner = locked(&self.inner);
        if inner.images_held.contains_key(digest) {
            return Ok(false);
        }
        if inner.images.contains_key(digest) {
            files::remove_durably(&self.record_path(digest))?;
        }
        let Some(record) = inner.images.remove(digest) else { return Ok(true) };
        let shared = |config: &Digest| inner.images.values().any(|other| other.config_digest == *config);
        files::remove(&self.document_path(digest));
        if !shared(&record.config_digest) {
            files::remove(&self.document_path(&record.config_digest));
        }
        Ok(true)
    }
}

/// Returns the file name for a digest.
fn name(digest: &Digest) -> String {
    format!("{}-{}", digest.algorithm().name(), digest.hex())
}

fn digest_of(name: &str) -> Option<Digest> {
    name.replacen('-', ":", 1).parse().ok()
}

fn read_record(path: &Path) -> Result<ImageRecord, String> {
    let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let digest = file.strip_suffix(".json").and_then(digest_of).ok_or("the file name is not a digest")?;
    let bytes = files::read(path, RECORD_MAX).map_err(|error| executor_core::errors::chain(&error))?;
    let record: ImageRecord = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    if record.version != record::VERSION {
        return Err(format!("the record has version {}; expected {}", record.version, record::VERSION));
    }
    if record.digest != digest {
        return Err("the file name is the digest of another image".to_owned());
    }
    Ok(record)
}

fn has_documents(dir: &Path, record: &ImageRecord) -> bool {
    [&record.digest, &record.config_digest].into_iter().all(|digest| dir.join("documents").join(name(digest)).is_file())
}

/// Removes duplicate references. A crash can leave a reference in two images while the reference moves from one to the
/// other. The image with the newest assignment keeps the reference.
fn remove_duplicate_references(images: &mut BTreeMap<Digest, ImageRecord>) {
    let mut newest: BTreeMap<String, (u64, Digest)> = BTreeMap::new();
    for record in images.values() {
        for (reference, at) in &record.references {
            let entry = newest.entry(reference.clone()).or_insert_with(|| (*at, record.digest.clone()));
            if entry.0 < *at {
                *entry = (*at, record.digest.clone());
            }
        }
    }
    for record in images.values_mut() {
        let digest = record.digest.clone();
        record.keep_references(|reference| newest.get(reference).is_some_and(|(_, owner)| *owner == digest));
    }
}
