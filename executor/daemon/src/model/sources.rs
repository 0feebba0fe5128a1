//! Inputs of a container that came by reference: what is kept of them with the container. References are names, and no value
//! is here: whether a value has changed is told by a tag, whose key is in memory only.

use std::path::PathBuf;
use std::sync::Arc;

use executor_core::reference::SecretReference;
use executor_core::time::Timestamp;
use executor_providers::Lease;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::access::rules::Requester;
use crate::model::identity::IdentityRecord;
pub use crate::model::identity::Stale;

/// Place that a value goes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// A file, by its absolute path.
    File(PathBuf),
    /// A secret variable, by its name.
    Variable(String),
    /// A secret argument, by its index.
    Argument(u32),
}

/// An input that came by reference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceRecord {
    /// Place of the value.
    pub target: Target,
    /// Path of the run action in a tree; empty for an input of the container itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub action: String,
    /// Reference of the request.
    pub reference: SecretReference,
    /// Version of the value; empty where the provider has none.
    #[serde(default)]
    pub version: String,
    /// Keyed hash of the value, with the key of request tags.
    pub tag: String,
    /// Time at which the value was fetched.
    pub fetched_at: Timestamp,
    /// True when it is fetched again while the container runs.
    pub followed: bool,
    /// Client that named the reference, if it is followed. Unset in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<Arc<Requester>>,
    /// Lease of the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// Set while the provider does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale: Option<Stale>,
}

impl SourceRecord {
    /// Returns whether another record is about the same input.
    fn is_same_input(&self, other: &Self) -> bool {
        (&self.target, &self.action, &self.reference) == (&other.target, &other.action, &other.reference)
    }
}

/// Change of a container's sources, for the task that drives it.
#[derive(Debug)]
pub(crate) struct SourceNews {
    /// Change.
    pub(crate) change: SourceChange,
    /// Told when the change is in the facts.
    pub(crate) done: oneshot::Sender<()>,
}

/// Kind of a change.
#[derive(Debug)]
pub(crate) enum SourceChange {
    /// A caller's update replaced or removed files, and named new sources for some.
    Replaced {
        /// Files whose sources count no longer.
        files: Vec<PathBuf>,
        /// New sources.
        sources: Vec<SourceRecord>,
    },
    /// The providers were asked again.
    Looked(Vec<SourceRecord>),
    /// The container's certificate was replaced, or could not be.
    Identity(Box<IdentityRecord>),
}

impl SourceChange {
    /// Applies the change.
    pub(crate) fn apply(self, sources: &mut Vec<SourceRecord>, identity: &mut Option<IdentityRecord>) {
        match self {
            Self::Identity(new) => *identity = Some(*new),
            Self::Replaced { files, sources: new } => {
                sources.retain(
                    |old| !matches!(&old.target, Target::File(path) if old.action.is_empty() && files.contains(path)),
                );
                sources.extend(new);
            }
            Self::Looked(looked) => {
                for new in looked {
                    if let Some(old) = sources.iter_mut().find(|old| old.is_same_input(&new)) {
                        *old = new;
                    }
                }
            }
        }
    }
}

/// Returns whether one of them may be old.
pub(crate) fn any_stale(sources: &[SourceRecord]) -> bool {
    sources.iter().any(|source| source.stale.is_some())
}
