//! Selects the image of an index that runs on this host.
//!
//! The image specification makes `platform` optional in an index entry and lets an index list indexes. Entries with a
//! platform are selected by their platform. If no platform fits, the search reads the entries without a platform in
//! order, and takes their platforms from their configurations. The search is depth first, with limits on the nesting
//! depth and on the number of documents read.

use std::collections::BTreeSet;
use std::sync::Arc;

use executor_core::image::Digest;
use oci_spec::image::{Descriptor, ImageIndex, Platform};

use crate::error::ImageError;
use crate::manifest::digest_and_size;
use crate::platform::{self, Host};

/// Maximum number of images in an index.
const MANIFESTS_MAX: usize = 1000;
/// Maximum nesting depth of indexes.
const DEPTH_MAX: usize = 3;
/// Maximum number of index entries that are read to find their platform.
const CANDIDATES_MAX: usize = 32;
/// Maximum number of platforms listed in an error.
const SHOWN_MAX: usize = 32;

/// Verified documents of an image: indexes and manifest.
pub(crate) type Chain = Vec<(Digest, Vec<u8>)>;

/// An entry of an index whose image may run on this host.
#[derive(Clone)]
pub(crate) struct Candidate {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    /// Verified indexes that lead to the entry, outermost first.
    pub(crate) indexes: Arc<Chain>,
}

/// Searches an image for this host in one or more indexes.
pub(crate) struct Search<'a> {
    host: Host,
    what: &'a str,
    /// Stack of candidates; the last candidate is read next.
    candidates: Vec<Candidate>,
    read: usize,
    /// Platforms of images that do not run on this host.
    there: BTreeSet<String>,
}

impl<'a> Search<'a> {
    pub(crate) fn new(host: Host, what: &'a str) -> Self {
        Self { host, what, candidates: Vec::new(), read: 0, there: BTreeSet::new() }
    }

    /// Adds the entries of an index whose images may run on this host. `indexes` ends with that index.
    ///
    /// # Errors
    /// Returns an error if the index has too many entries or is nested too deeply, or if an entry has no valid digest.
    pub(crate) fn add(&mut self, index: &ImageIndex, indexes: Chain) -> Result<(), ImageError> {
        if indexes.len() > DEPTH_MAX {
            let why = format!("indexes are nested more than {DEPTH_MAX} levels deep");
            return Err(ImageError::Unsupported { what: self.what.to_owned(), why });
        }
        let manifests = index.manifests();
        if manifests.len() > MANIFESTS_MAX {
            let (what, is) = (self.what.to_owned(), manifests.len() as u64);
            return Err(ImageError::TooLarge { what, is, most: MANIFESTS_MAX as u64, unit: "images" });
        }
        let chosen: Vec<&Descriptor> = match best(manifests.iter(), &self.host) {
            Some(best) => vec![best],
            // An entry with an artifact type is not an image, but a signature or an SBOM, for example.
            None => manifests
                .iter()
                .filter(|descriptor| platform_of(descriptor).is_none() && descriptor.artifact_type().is_none())
                .collect(),
        };
        if chosen.first().is_none_or(|entry| platform_of(entry).is_none()) {
            self.add_platforms(platforms(manifests.iter()));
        }
        let indexes = Arc::new(indexes);
        for descriptor in chosen.into_iter().take(CANDIDATES_MAX + 1).rev() {
            let (digest, size) = digest_and_size(descriptor, self.what)?;
            self.candidates.push(Candidate { digest, size, indexes: Arc::clone(&indexes) });
        }
        Ok(())
    }

    /// Adds the platforms in `error` to the list of unsuitable platforms, so that the search continues with the next
    /// image.
    ///
    /// # Errors
    /// Returns `error` if `error` is not [`ImageError::NoPlatform`].
    pub(crate) fn pass_over(&mut self, error: ImageError) -> Result<(), ImageError> {
        match error {
            ImageError::NoPlatform { there, .. } => {
                self.add_platforms(there.into_iter());
                Ok(())
            }
            error => Err(error),
        }
    }

    fn add_platforms(&mut self, platforms: impl Iterator<Item = String>) {
        let room = SHOWN_MAX.saturating_sub(self.there.len());
        self.there.extend(platforms.take(room));
    }

    /// Returns the index entry to read next.
    ///
    /// # Errors
    /// Returns [`ImageError::NoPlatform`] if there is no next entry, and [`ImageError::TooLarge`] if too many entries
    /// were read.
    pub(crate) fn next(&mut self) -> Result<Candidate, ImageError> {
        let what = || self.what.to_owned();
        let Some(next) = self.candidates.pop() else {
            let there = std::mem::take(&mut self.there).into_iter().collect();
            return Err(ImageError::NoPlatform { what: what(), wanted: self.host.to_string(), there });
        };
        self.read += 1;
        if self.read > CANDIDATES_MAX {
            let (is, most) = (self.read as u64, CANDIDATES_MAX as u64);
            let unit = "index entries without a platform";
            return Err(ImageError::TooLarge { what: what(), is, most, unit });
        }
        Ok(next)
    }
}

/// Selects the index entry for this host. Every entry must have a platform.
///
/// # Errors
/// Returns [`ImageError::NoPlatform`] if no entry is for this host.
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

/// Returns the index entry whose platform fits the host best.
fn best<'a>(entries: impl Iterator<Item = &'a Descriptor>, host: &Host) -> Option<&'a Descriptor> {
    let rank = |descriptor: &Descriptor| {
        let platform = platform_of(descriptor)?;
        host.rank(platform.os(), platform.architecture(), platform.variant().as_deref())
    };
    let ranked = entries.filter_map(|descriptor| Some((rank(descriptor)?, descriptor)));
    ranked.min_by_key(|(rank, _)| *rank).map(|(_, descriptor)| descriptor)
}

/// Returns the platforms of index entries, without `unknown/unknown`, which marks signatures and attestations.
fn platforms<'a>(entries: impl Iterator<Item = &'a Descriptor>) -> impl Iterator<Item = String> {
    entries.filter_map(platform_of).map(platform::from_index).filter(|platform| !platform.contains("unknown"))
}

/// Returns the platform of an index entry. Returns `None` if the platform is missing or empty.
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

    /// If no platform fits, entries without a platform are read in order. Artifacts and attestations are never read.
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
        assert!(deep.to_string().contains("more than 3 levels deep"), "{deep}");
        let mut search = Search::new(Host::here(), "x");
        // Each of many candidates is an index with many other candidates.
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
