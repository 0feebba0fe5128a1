//! Verifies that an image has the signatures that the operator requires.
//!
//! ```text
//!  SignaturePolicy   patterns of repositories, each with public keys
//!    └─ verify ──> Registry    sha256-HEX.sig, the referrers of a digest, or sha256-HEX
//!         ├─ simple            cosign's payloads, which name a manifest's digest
//!         └─ bundle            sigstore's bundles: a statement about a digest, or a signature of the manifest itself
//! ```
//! The input is the verified manifests of an image, and the registry's untrusted signature documents. The output is the
//! keys that signed the image. Only public keys count: certificates, transparency logs, services and times are not
//! used. The index or manifest of the image is verified before any layer is fetched.

mod bundle;
mod fetch;
mod keys;
mod simple;

use executor_core::image::{ImageReference, Repository, RepositoryPattern};

use crate::error::ImageError;
use crate::record::Evidence;

pub(crate) use fetch::verify;
pub use keys::TrustedKey;

/// Maximum number of rules in a policy.
pub const RULES_MAX: usize = 100;
/// Maximum number of keys in a rule.
pub const KEYS_MAX: usize = 32;

/// Signatures that the operator requires. All rules that match the repository must be satisfied.
#[derive(Clone, Debug, Default)]
pub struct SignaturePolicy(pub Vec<SignatureRule>);

/// Repositories whose images must be signed by one of these keys.
#[derive(Clone, Debug)]
pub struct SignatureRule {
    /// Repositories that the rule applies to.
    pub images: Vec<RepositoryPattern>,
    /// Trusted keys; a signature by one of them is enough.
    pub keys: Vec<TrustedKey>,
    /// True if the signature must also name the repository, so that a signature copied from another repository is not
    /// accepted.
    pub repository: bool,
}

impl SignaturePolicy {
    /// Returns the rules that match a repository.
    pub(crate) fn rules_for(&self, repository: &Repository) -> Vec<&SignatureRule> {
        let has = |rule: &&SignatureRule| rule.images.iter().any(|pattern| pattern.matches(repository));
        self.0.iter().filter(has).collect()
    }

    /// Returns true if the signatures that were found during the fetch satisfy every current rule that matches.
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

/// Returns the evidence for a signature that names the repository.
fn named(key: &TrustedKey) -> String {
    format!("{}@repository", key.id())
}

/// A signature with the signed content.
struct Signed {
    /// Bytes that the signatures cover.
    message: Vec<u8>,
    /// Signatures of the message; one valid signature is enough.
    signatures: Vec<Vec<u8>>,
    /// Image reference in the signed content.
    name: Option<String>,
}

impl Signed {
    /// Returns the evidence that this signature provides for an image of the repository.
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

/// Creates the error for an image without the required signatures.
fn unsigned(what: &str, reasons: &[String]) -> ImageError {
    const REPORTED: usize = 4;
    let mut why = reasons.iter().take(REPORTED).cloned().collect::<Vec<_>>().join("; ");
    match reasons.len() {
        0 => why.push_str("the registry has no signatures for the image"),
        count if count > REPORTED => why.push_str(&format!("; and {} more", count - REPORTED)),
        _ => {}
    }
    ImageError::Unsigned { what: what.to_owned(), why }
}
