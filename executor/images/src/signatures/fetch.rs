//! Searches an image's registry for signatures, within limits, until every rule is satisfied.
//!
//! The search covers each of the image's verified documents, index first. For each document, the search reads the tag
//! `sha256-HEX.sig`, where cosign stores signatures, and then the referrers of the digest (distribution specification
//! 1.1). If the registry has no API for referrers, the referrers are read from the tag `sha256-HEX`.

use executor_core::text::printable;
use std::collections::BTreeMap;

use executor_core::image::{Digest, Repository};
use serde::Deserialize;

use super::{SignatureRule, Signed, TrustedKey, bundle, simple, unsigned};
use crate::error::ImageError;
use crate::hash;
use crate::record::Evidence;
use crate::registry::Registry;

/// Artifact type of cosign signatures that are stored as referrers of an image.
const COSIGN: &str = "application/vnd.dev.cosign.artifact.sig.v1+json";
/// Maximum number of signature documents that are read per image.
const DOCUMENTS_MAX: usize = 32;
/// Maximum number of layers that are read per signature document.
const LAYERS_MAX: usize = 64;
/// Maximum number of signatures that are checked per image.
const SIGNATURES_MAX: usize = 64;
/// Maximum size of a payload, in bytes.
const PAYLOAD_MAX: u64 = 64 << 10;
/// Maximum size of a bundle, in bytes.
const BUNDLE_MAX: u64 = 1 << 20;

/// A registry document that may contain signatures, or may list such documents.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    #[serde(default)]
    layers: Vec<Entry>,
    #[serde(default)]
    manifests: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(default)]
    media_type: String,
    artifact_type: Option<String>,
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

struct Search<'a> {
    registry: &'a Registry,
    repository: &'a Repository,
    rules: &'a [&'a SignatureRule],
    keys: Vec<&'a TrustedKey>,
    found: Evidence,
    /// Reasons why signatures were not accepted so far.
    reasons: Vec<String>,
    documents: usize,
    signatures: usize,
}

/// Verifies that an image is signed as the rules require. `chain` contains the image's verified documents: index and
/// manifest.
///
/// # Errors
/// Returns an error if a required signature is missing, or if the registry fails.
pub(crate) async fn verify(
    registry: &Registry,
    repository: &Repository,
    chain: &[(Digest, Vec<u8>)],
    rules: &[&SignatureRule],
    what: &str,
) -> Result<Evidence, ImageError> {
    let mut search = Search {
        registry,
        repository,
        rules,
        keys: rules.iter().flat_map(|rule| &rule.keys).collect(),
        found: Evidence::new(),
        reasons: Vec::new(),
        documents: 0,
        signatures: 0,
    };
    for (digest, bytes) in chain {
        if search.search_digest((digest, bytes)).await? {
            return Ok(search.found);
        }
    }
    Err(unsigned(what, &search.reasons))
}

impl Search<'_> {
    fn all_rules_satisfied(&self) -> bool {
        self.rules.iter().all(|rule| rule.is_satisfied(&self.found))
    }

    /// Checks the signatures that are stored for one document of the image. Returns true if every rule is satisfied.
    async fn search_digest(&mut self, of: (&Digest, &[u8])) -> Result<bool, ImageError> {
        let name = format!("{}-{}", of.0.algorithm().name(), of.0.hex());
        let what = format!("the signatures {}.sig", brief(&name));
        let answer = self.tagged(&format!("{name}.sig"), &what).await;
        if let Some(document) = self.document(answer, &what)? {
            self.search_layers(document.layers, of, &what).await?;
        }
        if self.all_rules_satisfied() {
            return Ok(true);
        }
        for entry in self.referrers(of.0, &name).await? {
            let what = format!("the signatures {}", brief(&entry.digest));
            let answer = self.named(&entry, &what).await;
            if let Some(document) = self.document(answer, &what)? {
                self.search_layers(document.layers, of, &what).await?;
            }
            if self.all_rules_satisfied() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Lists the documents that refer to a digest and may contain signatures.
    async fn referrers(&mut self, of: &Digest, name: &str) -> Result<Vec<Entry>, ImageError> {
        let what = format!("the referrers of {of}");
        let listed = self.registry.referrers(of, &what).await;
        let list = match self.document(listed, &what)? {
            Some(list) => Some(list),
            None => {
                let answer = self.tagged(name, &what).await;
                self.document(answer, &what)?
            }
        };
        let mut entries = list.map(|list| list.manifests).unwrap_or_default();
        let may_be = |kind: &str| kind.starts_with(bundle::MEDIA_TYPE) || kind == COSIGN || kind == bundle::SIGNS;
        entries.retain(|entry| entry.artifact_type.as_deref().is_none_or(may_be));
        Ok(entries)
    }

    async fn tagged(&self, tag: &str, what: &str) -> Result<Vec<u8>, ImageError> {
        self.registry.manifest(tag, what).await.map(|document| document.bytes)
    }

    /// Fetches the document that an entry lists, by digest.
    async fn named(&self, entry: &Entry, what: &str) -> Result<Vec<u8>, ImageError> {
        let digest = digest_of(entry, what)?;
        let bytes = self.registry.manifest(&digest.to_string(), what).await?.bytes;
        hash::check_size(entry.size, &bytes, what)?;
        hash::check_digest(&digest, &bytes, what)?;
        Ok(bytes)
    }

    /// Parses a document, if it exists. A malformed document adds a reason and does not stop the search, because anyone
    /// who can write to the repository may have stored it.
    fn document(&mut self, answer: Result<Vec<u8>, ImageError>, what: &str) -> Result<Option<Document>, ImageError> {
        let bytes = match answer {
            Ok(bytes) => bytes,
            Err(ImageError::NotFound { .. }) => return Ok(None),
            Err(error) => return self.record_error(error).map(|()| None),
        };
        self.documents += 1;
        if self.documents > DOCUMENTS_MAX {
            self.limit(format!(
                "there are more than {DOCUMENTS_MAX} signature documents; only the first {DOCUMENTS_MAX} were examined"
            ));
            return Ok(None);
        }
        match serde_json::from_slice::<Document>(&bytes) {
            Ok(document) => Ok(Some(document)),
            Err(error) => {
                self.add_problem(format!("{what} are malformed: {error}"));
                Ok(None)
            }
        }
    }

    /// Checks the signatures in the layers of a signature document, for the image document `of`.
    async fn search_layers(&mut self, layers: Vec<Entry>, of: (&Digest, &[u8]), what: &str) -> Result<(), ImageError> {
        if layers.len() > LAYERS_MAX {
            self.limit(format!("{what}: only the first {LAYERS_MAX} of {} layers were examined", layers.len()));
        }
        for layer in layers.into_iter().take(LAYERS_MAX) {
            let most = match &*layer.media_type {
                simple::MEDIA_TYPE => PAYLOAD_MAX,
                kind if kind.starts_with(bundle::MEDIA_TYPE) => BUNDLE_MAX,
                _ => continue,
            };
            self.signatures += 1;
            if self.signatures > SIGNATURES_MAX {
                self.limit(format!(
                    "there are more than {SIGNATURES_MAX} signatures; only the first {SIGNATURES_MAX} were examined"
                ));
                return Ok(());
            }
            let what = format!("signature {}", brief(&layer.digest));
            let signed = match self.blob(&layer, most, &what).await {
                Err(error) => {
                    self.record_error(error)?;
                    continue;
                }
                Ok(blob) if most == PAYLOAD_MAX => simple::read(blob, &layer.annotations, of.0),
                Ok(blob) => bundle::read(&blob, of),
            };
            match signed.map(|signed: Signed| signed.evidence(&self.keys, self.repository)) {
                Err(why) => self.add_problem(format!("{what}: {why}")),
                Ok(evidence) if evidence.is_empty() => self.add_problem(format!("no configured key verifies {what}")),
                Ok(evidence) => {
                    self.found.extend(evidence);
                    if self.all_rules_satisfied() {
                        return Ok(());
                    }
                    self.add_problem(format!(
                        "{what} does not satisfy every rule; check its key and the repository that it names"
                    ));
                }
            }
        }
        Ok(())
    }

    async fn blob(&self, layer: &Entry, most: u64, what: &str) -> Result<Vec<u8>, ImageError> {
        if layer.size > most {
            return Err(ImageError::TooLarge { what: what.to_owned(), is: layer.size, most, unit: "bytes" });
        }
        let digest = digest_of(layer, what)?;
        let blob = self.registry.small_blob(&digest.to_string(), what).await?.bytes;
        hash::check_size(layer.size, &blob, what)?;
        hash::check_digest(&digest, &blob, what)?;
        Ok(blob)
    }

    /// Records an exceeded limit, before the reasons that concern single signatures.
    fn limit(&mut self, why: String) {
        self.reasons.insert(0, why);
    }

    fn add_problem(&mut self, why: String) {
        self.reasons.push(why);
    }

    /// Records an error in the registry's content as a reason. Returns errors of the registry itself. Such errors stop
    /// the search.
    fn record_error(&mut self, error: ImageError) -> Result<(), ImageError> {
        match error {
            ImageError::NotFound { .. }
            | ImageError::WrongDigest { .. }
            | ImageError::Longer { .. }
            | ImageError::TooLarge { .. }
            | ImageError::Malformed { .. }
            | ImageError::Unsupported { .. } => {
                self.add_problem(error.to_string());
                Ok(())
            }
            error => Err(error),
        }
    }
}

fn digest_of(entry: &Entry, what: &str) -> Result<Digest, ImageError> {
    entry.digest.parse().map_err(|bad| ImageError::Malformed { what: what.to_owned(), why: format!("a digest {bad}") })
}

/// Shortens a digest for error messages.
fn brief(digest: &str) -> String {
    printable(digest, 100).chars().take("sha256:".len() + 12).collect()
}
