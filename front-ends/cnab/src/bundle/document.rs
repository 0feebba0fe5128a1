//! Types for the parts of a bundle.json, with the field names of CNAB 101.
//!
//! Rules are numbered as in `docs/guides/cnab-rules.md`.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::paths::rooted;

/// Fields of a bundle.json that describe the bundle for users.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Metadata {
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    pub keywords: Vec<String>,
    #[serde(default)]
    pub license: String,
    #[serde(default)]
    pub maintainers: Vec<Maintainer>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Maintainer {
    pub name: String,
    #[serde(default)]
    pub email: String,
    #[serde(default)]
    pub url: String,
}

/// An invocation image, or another image that the bundle refers to.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    pub image: String,
    /// Type of the image; `oci` if empty (rule 26).
    #[serde(default)]
    pub image_type: String,
    /// Digest of the manifest, which is verified before the image is run (rule 27).
    pub content_digest: Option<String>,
    /// Media type of the manifest.
    pub media_type: Option<String>,
    /// Size of the image, in bytes.
    pub size: Option<u64>,
    /// Labels for selecting an image: `architecture`, `os`.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Parameter {
    pub definition: String,
    /// Description for users.
    #[serde(default)]
    pub description: String,
    /// Names of the actions that use the parameter; empty if all actions use it (rule 30).
    #[serde(default)]
    pub apply_to: Vec<String>,
    /// True if the parameter requires a value (rule 14).
    #[serde(default)]
    pub required: bool,
    pub destination: Destination,
}

/// Destination of a value: a variable, a file, or both (rules 18 and 29).
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Destination {
    /// Name of a variable.
    pub env: Option<String>,
    /// Path in the container. A relative path is relative to the root (rule 20).
    pub path: Option<String>,
}

/// Credential that a bundle needs.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Credential {
    /// Description for users.
    #[serde(default)]
    pub description: String,
    /// Names of the actions that use the credential; empty if all actions use it.
    #[serde(default)]
    pub apply_to: Vec<String>,
    /// True if the credential must be supplied (rule 31).
    #[serde(default)]
    pub required: bool,
    #[serde(flatten)]
    pub destination: Destination,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    pub definition: String,
    /// Description for users.
    #[serde(default)]
    pub description: String,
    /// Names of the actions that have the output; empty if all actions have it.
    #[serde(default)]
    pub apply_to: Vec<String>,
    /// Absolute path of the file, below [`OUTPUTS`](crate::paths::OUTPUTS).
    pub path: String,
}

/// Returns true if an `applyTo` list includes an action. An empty list includes all actions (rule 30).
pub fn applies(apply_to: &[String], action: &str) -> bool {
    apply_to.is_empty() || apply_to.iter().any(|name| name == action)
}

impl Image {
    /// Returns the image type: `oci`, `docker`, or an unsupported type.
    pub fn kind(&self) -> &str {
        if self.image_type.is_empty() { "oci" } else { &self.image_type }
    }
}

impl Destination {
    /// Returns the path as an absolute path (rule 20).
    pub fn absolute_path(&self) -> Option<String> {
        self.path.as_deref().map(rooted)
    }
}
