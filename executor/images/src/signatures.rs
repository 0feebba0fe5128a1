//! Signatures of images: which ones the operator wants, and whether an image has them.
//!
//! ```text
//!  SignaturePolicy   patterns of repositories, each with public keys
//!    └─ verify ──> Registry    sha256-HEX.sig, the referrers of a digest, or sha256-HEX
//!         ├─ simple            cosign's payloads, which name a manifest's digest
//!         └─ bundle            sigstore's bundles: a statement about a digest, or a signature of the manifest itself
//! ```
//! In go the verified manifests of an image and what a registry keeps beside them, none of that believed; out comes by
//! which keys the image is signed. Only public keys count: no certificate, no transparency log and no service is asked, and
//! no time matters. What has been verified is the bytes of the index or the manifest that is run, before any layer is fetched.

mod bundle;
mod fetch;
mod keys;
mod simple;

use executor_core::image::{ImageReference, Repository, RepositoryPattern};

use crate::error::ImageError;
use crate::record::Evidence;

pub(crate) use fetch::verify;
pub use keys::TrustedKey;

/// Maximum number of rules, and keys of one.
pub const RULES_MAX: usize = 100;
/// Maximum number of keys of a rule.
pub const KEYS_MAX: usize = 32;

/// Signatures that the operator wants. Each rule that has a repository must be satisfied.
#[derive(Clone, Debug, Default)]
pub struct SignaturePolicy(pub Vec<SignatureRule>);

/// Repositories whose images must be signed by one of these keys.
#[derive(Clone, Debug)]
pub struct SignatureRule {
    /// Repositories that the rule applies to.
    pub images: Vec<RepositoryPattern>,
    /// Any one of them.
    pub keys: Vec<TrustedKey>,
    /// The signature must name the repository, too: one that was copied from another repository does not count.
    pub repository: bool,
}

impl SignaturePolicy {
    /// The rules for a repository.
    pub(crate) fn rules_for(&self, repository: &Repository) -> Vec<&SignatureRule> {
        let has = |rule: &&SignatureRule| rule.images.iter().any(|pattern| pattern.matches(repository));
        self.0.iter().filter(has).collect()
    }

    /// The signatures that were found when an image came satisfy every rule as it is now.
    pub(crate) fn is_satisfied(&self, repository: &Repository, evidence: &Evidence) -> bool {
        self.rules_for(repository).iter().all(|rule| rule.is_satisfied(evidence))
    }
}

impl SignatureRule {
    fn is_satisfied(&self, evidence: &Evidence) -> bool {
        self.keys.iter().any(|key| match self.repository {
            false => evidence.contains(key.id()),
            true => evidence.contains(&named(key)),
        })
    }
}

/// Evidence of a signature that names the repository.
fn named(key: &TrustedKey) -> String {
    format!("{}@repository", key.id())
}

/// A signature, with what it is of.
struct Signed {
    /// The bytes that were signed.
    message: Vec<u8>,
    /// Any one of these.
    signatures: Vec<Vec<u8>>,
    /// Reference of the image in the signature.
    name: Option<String>,
}

impl Signed {
    /// Returns the evidence that this signature gives for an image of the repository.
    fn evidence(&self, keys: &[&TrustedKey], repository: &Repository) -> Evidence {
        let is_by = |key: &&&TrustedKey| self.signatures.iter().any(|signature| key.verifies(&self.message, signature));
        let is_named = self.name.as_deref().is_some_and(|name| {
            matches!(ImageReference::parse_short(name), Ok(ImageReference::Registry(named, _)) if named == *repository)
        });
        let mut evidence = Evidence::new();
        for key in keys.iter().filter(is_by) {
            evidence.insert(key.id().to_owned());
            if is_named {
                evidence.insert(named(key));
            }
        }
        evidence
    }
}

/// The error of an image that is not signed as it must be.
fn unsigned(what: &str, reasons: &[String]) -> ImageError {
    const TOLD: usize = 4;
    let mut why = reasons.iter().take(TOLD).cloned().collect::<Vec<_>>().join("; ");
    match reasons.len() {
        0 => why.push_str("its registry has no signatures for it"),
        count if count > TOLD => why.push_str(&format!("; and {} more", count - TOLD)),
        _ => {}
    }
    ImageError::Unsigned { what: what.to_owned(), why }
}
