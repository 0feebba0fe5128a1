//! Defines image records: the store's metadata of each image, stored as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use executor_core::image::Digest;
use executor_core::time::Timestamp;
use serde::{Deserialize, Serialize};

pub(crate) const VERSION: u32 = 1;

/// Valid signatures that were found when an image was fetched. Each signature is recorded as `KEY`, and also as
/// `KEY@repository` if it names the repository.
pub(crate) type Evidence = BTreeSet<String>;

/// An image whose layers are all present.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// Version of the record format.
    pub(crate) version: u32,
    /// Digest of the manifest.
    pub digest: Digest,
    /// Digest of the index that the manifest was selected from.
    pub index_digest: Option<Digest>,
    pub config_digest: Digest,
    /// Names of the image, each with the time at which the name was assigned, in nanoseconds since the epoch.
    pub references: BTreeMap<String, u64>,
    /// References for which a registry returned this image, each with the signatures that were found then.
    #[serde(default)]
    pub(crate) fetched: BTreeMap<String, Evidence>,
    /// True if a client has ever imported the image.
    #[serde(default)]
    pub(crate) imported: bool,
    /// Platform, such as `linux/amd64`.
    pub platform: String,
    /// Layers, lowest first.
    pub layers: Vec<LayerRecord>,
    /// Total size of the blobs in bytes, compressed as in a registry.
    pub size: u64,
    /// Time of the pull or import, in nanoseconds since the epoch.
    pub pulled_at: u64,
    /// Time of the last use in nanoseconds since the epoch, with a precision of one minute. Before the first use, this
    /// is the time of the pull.
    pub last_used_at: u64,
    /// Warnings about entries that were skipped when the layers were unpacked.
    #[serde(default)]
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerRecord {
    /// Digest of the uncompressed tar archive.
    pub diff_id: Digest,
    pub digest: Digest,
    /// Media type as OCI spells it.
    pub media_type: String,
    /// Size of the blob in bytes.
    pub size: u64,
}

/// Source from which an image was added to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Provenance {
    /// Fetched from the registry of its reference, with these signatures.
    Registry(Evidence),
    /// Imported from an archive that a client sent.
    Import,
    /// Read from a layout or archive on local disk.
    Archive,
}

impl ImageRecord {
    /// Removes the references for which `keep` returns false, with their recorded data.
    pub(crate) fn keep_references(&mut self, keep: impl Fn(&str) -> bool) {
        self.references.retain(|reference, _| keep(reference));
        self.fetched.retain(|reference, _| keep(reference));
    }

    /// Returns the reference that was added last.
    pub fn newest_reference(&self) -> Option<&str> {
        self.references.iter().max_by_key(|(_, at)| **at).map(|(reference, _)| &**reference)
    }
}

/// Returns the current time in nanoseconds since the epoch, the unit of the records.
pub(crate) fn now() -> u64 {
    Timestamp::from(SystemTime::now()).0
}
