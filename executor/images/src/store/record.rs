//! What is remembered of an image.

use std::collections::BTreeMap;

use executor_core::image::Digest;
use serde::{Deserialize, Serialize};

use crate::signatures::Evidence;

/// Of the form of records.
pub(crate) const VERSION: u32 = 1;

/// An image that is there, with all its layers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// Of this form.
    pub(crate) version: u32,
    /// Of its manifest.
    pub digest: Digest,
    /// Of the index that it was chosen from.
    pub index_digest: Option<Digest>,
    /// Of its configuration.
    pub config_digest: Digest,
    /// What it is called, and since when, in nanoseconds since the epoch.
    pub references: BTreeMap<String, u64>,
    /// References that a registry gave it for, each with what was found of its signatures.
    #[serde(default)]
    pub(crate) fetched: BTreeMap<String, Evidence>,
    /// It was imported.
    #[serde(default)]
    pub(crate) imported: bool,
    /// `linux/amd64`.
    pub platform: String,
    /// Its layers, the lowest first.
    pub layers: Vec<LayerRecord>,
    /// Bytes of its blobs, as in a registry.
    pub size: u64,
    /// When it came, in nanoseconds since the epoch.
    pub pulled_at: u64,
    /// When it was used last, give or take a minute; when it came, where it never was.
    pub last_used_at: u64,
    /// What was left out of its layers when they were unpacked.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// A layer of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerRecord {
    /// Of its tar archive, uncompressed.
    pub diff_id: Digest,
    /// Of its blob.
    pub digest: Digest,
    /// In OCI's spelling.
    pub media_type: String,
    /// Bytes of its blob.
    pub size: u64,
}

/// How an image came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the registry of its reference, with these signatures.
    Registry(Evidence),
    /// A client sent it.
    Import,
    /// From a layout or an archive on this machine's disk.
    Archive,
}

impl ImageRecord {
    /// Takes references away, and what is known of each with it.
    pub(crate) fn keep_references(&mut self, keep: impl Fn(&str) -> bool) {
        self.references.retain(|reference, _| keep(reference));
        self.fetched.retain(|reference, _| keep(reference));
    }

    /// The reference that it got last.
    pub fn newest_reference(&self) -> Option<&str> {
        self.references.iter().max_by_key(|(_, at)| **at).map(|(reference, _)| &**reference)
    }
}
