//! Search of an index for the image that runs on this host.
//!
//! The image specification makes `platform` optional in an entry and lets an index list indexes. Entries with a platform are
//! chosen by it. If none of them fits, the entries without a platform are read in order, and the configuration of each says
//! what it is for. The search is depth first, and bounded in depth and in documents.

use std::collections::BTreeSet;
use std::sync::Arc;

use executor_core::image::Digest;
use oci_spec::image::{Descriptor, ImageIndex, Platform};

use crate::error::ImageError;
use crate::manifest::digest_and_size;
use crate::platform::{self, Host};

/// Maximum number of images of an index.
const MANIFESTS_MAX: usize = 1000;
/// Maximum number of indexes on the way to a manifest.
const DEPTH_MAX: usize = 3;
/// Maximum number of entries that are read to learn their platform.
const CANDIDATES_MAX: usize = 32;
/// Maximum number of platforms in an error.
const SHOWN_MAX: usize = 32;

/// Verified documents of an image: indexes and manifest.
pub(crate) type Chain = Vec<(Digest, Vec<u8>)>;

/// An entry of an index that may be for this host.
#[derive(Clone)]
pub(crate) struct Candidate {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    /// Verified indexes on the way to the entry, the outermost first.
    pub(crate) indexes: Arc<Chain>,
}

/// A search that goes on until a document is an image for this host.
pub(crate) struct Search<'a> {
    host: Host,
    what: &'a str,
    /// The next candidate is the last.
    waiting: Vec<Candidate>,
    read: usize,
    /// Platforms of the images that are for other hosts.
    there: BTreeSet<String>,
}

impl<'a> Search<'a> {
    pub(crate) fn new(host: Host, what: &'a str) -> Self {
        Self { host, what, waiting: Vec::new(), read: 0, there: BTreeSet::new() }
    }

    /// Adds the entries of an index that may be for this host. `indexes` ends with that index.
    ///
    /// # Errors
    /// Returns an error if the index has too many entries or is nested too deeply, or if an entry has no valid digest.
    pub(crate) fn add(&mut self, index: &ImageIndex, indexes: Chain) -> Result<(), ImageError> {
        if indexes.len() > DEPTH_MAX {
            let why = format!("its indexes are nested more than {DEPTH_MAX} deep");
            return Err(ImageError::Unsupported { what: self.what.to_owned(), why });
        }
        let manifests = index.manifests();
        if manifests.len() > MANIFESTS_MAX {
            let (what, is) = (self.what.to_owned(), manifests.len() as u64);
            return Err(ImageError::TooLarge { what, is, most: MANIFESTS_MAX as u64, unit: "images" });
        }
        let chosen: Vec<&Descriptor> = match best(manifests.iter(), &self.host) {
            Some(best) => vec![best],
            // What has a type of its own is no image: a signature or a list of contents.
            None => manifests
                .iter()
                .filter(|descriptor| platform_of(descriptor).is_none() && descriptor.artifact_type().is_none())
                .collect(),
        };
        if chosen.first().is_none_or(|entry| platform_of(entry).is_none()) {
            self.note(platforms(manifests.iter()));
        }
        let indexes = Arc::new(indexes);
        for descriptor in chosen.into_iter().take(CANDIDATES_MAX + 1).rev() {
            let (digest, size) = digest_and_size(descriptor, self.what)?;
            self.waiting.push(Candidate { digest, size, indexes: Arc::clone(&indexes) });
        }
        Ok(())
    }

    /// Passes over an image that is for another host.
    ///
    /// # Errors
    /// Returns `error` if it is about something else.
    pub(crate) fn pass_over(&mut self, error: ImageError) -> Result<(), ImageError> {
        match error {
            ImageError::NoPlatform { there, .. } => {
                self.note(there.into_iter());
                Ok(())
            }
            error => Err(error),
        }
    }

    fn note(&mut self, platforms: impl Iterator<Item = String>) {
        let room = SHOWN_MAX.saturating_sub(self.there.len());
        self.there.extend(platforms.take(room));
    }

    /// Returns the next entry to read.
    ///
    /// # Errors
    /// Returns [`ImageError::NoPlatform`] if there is none, and [`ImageError::TooLarge`] if too many were read.
    pub(crate) fn next(&mut self) -> Result<Candidate, ImageError> {
        let what = || self.what.to_owned();
        let Some(next) = self.waiting.pop() else {
            let there = std::mem::take(&mut self.there).into_iter().collect();
            return Err(ImageError::NoPlatform { what: what(), wanted: self.host.to_string(), there });
        };
        self.read += 1;
        if self.read > CANDIDATES_MAX {
            let (is, most) = (self.read as u64, CANDIDATES_MAX as u64);
            let unit = "entries that name no platform and must be read";
            return Err(ImageError::TooLarge { what: what(), is, most, unit });
        }
        Ok(next)
    }
}

/// Chooses among entries that all have a platform.
///
/// # Errors
/// Returns [`ImageError::NoPlatform`] if none of them is for this host.
pub(crate) fn by_platform<'a>(
    entries: &[&'a Descriptor],
    host: &Host,
    what: &str,
) -> Result<&'a Descriptor, ImageError> {
    best(entries.iter().copied(), host).ok_or_else(|| {
        let there: BTreeSet<String> = platforms(entries.iter().copied()).take(SHOWN_MAX).collect();
        let (what, wanted) = (what.to_owned(), host.to_string());
        ImageError::NoPlatform { what, wanted, there: there.into_iter().collect() }
    })
}

/// The entry that fits a host best by its platform.
fn best<'a>(entries: impl Iterator<Item = &'a Descriptor>, host: &Host) -> Option<&'a Descriptor> {
    let rank = |descriptor: &Descriptor| {
        let platform = platform_of(descriptor)?;
        host.rank(platform.os(), platform.architecture(), platform.variant().as_deref())
    };
    let ranked = entries.filter_map(|descriptor| Some((rank(descriptor)?, descriptor)));
    ranked.min_by_key(|(rank, _)| *rank).map(|(_, descriptor)| descriptor)
}

/// Platforms of entries. Signatures and attestations have `unknown/unknown`, and are left out.
fn platforms<'a>(entries: impl Iterator<Item = &'a Descriptor>) -> impl Iterator<Item = String> {
    entries.filter_map(platform_of).map(platform::from_index).filter(|platform| !platform.contains("unknown"))
}

/// The platform of an entry; `None` if it names none, or an empty one.
fn platform_of(descriptor: &Descriptor) -> Option<&Platform> {
    let is_empty =
        |platform: &&Platform| platform.os().to_string().is_empty() && platform.architecture().to_string().is_empty();
    descriptor.platform().as_ref().filter(|platform| !is_empty(platform))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn entry(number: usize, more: Value) -> Value {
        let mut entry = json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "size": number,
            "digest": format!("sha256:{number:064x}")});
        if let Value::Object(more) = more {
            entry.as_object_mut().unwrap().extend(more);
        }
        entry
    }

    fn index(entries: &[Value]) -> ImageIndex {
        serde_json::from_value(json!({"schemaVersion": 2, "manifests": entries})).unwrap()
    }

    fn chain(depth: usize) -> Chain {
        (0..depth).map(|number| (format!("sha256:{number:064x}").parse().unwrap(), Vec::new())).collect()
    }

    fn other() -> Value {
        json!({"platform": {"os": "linux", "architecture": "s390x"}})
    }

    /// Entries without a platform are read only if no platform fits, in order; artifacts and attestations never.
    #[test]
    fn entries_without_platform_are_read_in_order() {
        let host = Host::here();
        let ours = host.to_string();
        let fits = json!({"platform": {"os": "linux", "architecture": ours.split('/').nth(1).unwrap()}});
        let artifact = json!({"artifactType": "application/vnd.example"});
        let attestation = json!({"platform": {"os": "unknown", "architecture": "unknown"}});
        let empty = json!({"platform": {"os": "", "architecture": ""}});
        let all = [
            entry(1, json!({})),
            entry(2, other()),
            entry(3, artifact),
            entry(4, attestation),
            entry(5, empty),
            entry(6, fits),
        ];
        for (entries, expected) in [(&all[..], vec![6]), (&all[..5], vec![1, 5]), (&all[1..4], vec![])] {
            let mut search = Search::new(host.clone(), "x");
            search.add(&index(entries), chain(1)).unwrap();
            let mut sizes = Vec::new();
            let error = loop {
                match search.next() {
                    Ok(candidate) => sizes.push(candidate.size),
                    Err(error) => break error.to_string(),
                }
            };
            assert_eq!(sizes, expected);
            let there = if entries.len() == all.len() { "" } else { ", only for linux/s390x" };
            assert_eq!(error, format!("x is not available for {ours}{there}"));
        }
    }

    #[test]
    fn search_is_bounded_in_depth_and_documents() {
        let mut search = Search::new(Host::here(), "x");
        let nested = index(&[entry(1, json!({}))]);
        search.add(&nested, chain(DEPTH_MAX)).unwrap();
        let deep = search.add(&nested, chain(DEPTH_MAX + 1)).unwrap_err();
        assert!(deep.to_string().contains("more than 3 deep"), "{deep}");
        let mut search = Search::new(Host::here(), "x");
        // Each of many candidates is an index with many others.
        let wide: Vec<Value> = (0..MANIFESTS_MAX).map(|number| entry(number, json!({}))).collect();
        for _ in 0..CANDIDATES_MAX {
            search.add(&index(&wide), chain(1)).unwrap();
            search.next().unwrap();
        }
        assert!(matches!(search.next(), Err(ImageError::TooLarge { is: 33, most: 32, .. })));
        let more = index(&vec![entry(1, json!({})); MANIFESTS_MAX + 1]);
        assert!(matches!(search.add(&more, chain(1)), Err(ImageError::TooLarge { is: 1001, .. })));
    }
}
