//! Parts of a bundle.json, in the names of CNAB 101.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::paths::rooted;

/// Fields that nothing depends on.
#[derive(Clone, Debug, Default, Deserialize)]
#[allow(missing_docs)] // the names are the specification's
pub struct About {
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    pub keywords: Vec<String>,
    #[serde(default)]
    pub license: String,
    #[serde(default)]
    pub maintainers: Vec<Maintainer>,
}

/// Who answers for a bundle.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs)] // the names are the specification's
pub struct Maintainer {
    pub name: String,
    #[serde(default)]
    pub email: String,
    #[serde(default)]
    pub url: String,
}

/// An image, of the bundle itself or one that it refers to.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// Its reference.
    pub image: String,
    /// `oci` where nothing else is said (rule 26).
    #[serde(default)]
    pub image_type: String,
    /// Of its manifest; to be verified before a run (rule 27).
    pub content_digest: Option<String>,
    /// Of its manifest.
    pub media_type: Option<String>,
    /// In bytes.
    pub size: Option<u64>,
    /// For a choice: `architecture`, `os`.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// What may be configured.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Parameter {
    /// Name of its definition.
    pub definition: String,
    /// For a person.
    #[serde(default)]
    pub description: String,
    /// Names of actions; all when empty (rule 30).
    #[serde(default)]
    pub apply_to: Vec<String>,
    /// It must have a value (rule 14).
    #[serde(default)]
    pub required: bool,
    /// Where the value goes.
    pub destination: Destination,
}

/// Where a value goes: a variable, a file, or both (rules 18 and 29).
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Destination {
    /// Name of a variable.
    pub env: Option<String>,
    /// Path in the container; a relative one counts from the root (rule 20).
    pub path: Option<String>,
}

/// Whom a bundle acts as.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Credential {
    /// For a person.
    #[serde(default)]
    pub description: String,
    /// Names of actions; all when empty.
    #[serde(default)]
    pub apply_to: Vec<String>,
    /// It must be supplied (rule 31).
    #[serde(default)]
    pub required: bool,
    /// Where it goes.
    #[serde(flatten)]
    pub destination: Destination,
}

/// What an action leaves.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// Name of its definition.
    pub definition: String,
    /// For a person.
    #[serde(default)]
    pub description: String,
    /// Names of actions; all when empty.
    #[serde(default)]
    pub apply_to: Vec<String>,
    /// Absolute, below [`OUTPUTS`](crate::paths::OUTPUTS).
    pub path: String,
}

/// Whether something with this `applyTo` is about an action (rule 30).
pub fn applies(apply_to: &[String], action: &str) -> bool {
    apply_to.is_empty() || apply_to.iter().any(|name| name == action)
}

impl Image {
    /// `oci` or `docker`, or another that we cannot run.
    pub fn kind(&self) -> &str {
        if self.image_type.is_empty() { "oci" } else { &self.image_type }
    }
}

impl Destination {
    /// The path as an absolute one (rule 20).
    pub fn absolute_path(&self) -> Option<String> {
        self.path.as_deref().map(rooted)
    }
}
