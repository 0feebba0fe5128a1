//! Records of a container's inputs that are references to secret providers. A record holds names and no values. Changed
//! values are detected by a keyed digest, whose key is only in memory.

use std::path::PathBuf;
use std::sync::Arc;

use executor_core::reference::SecretReference;
use executor_core::time::Timestamp;
use executor_providers::Lease;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::access::rules::Requester;
use crate::model::identity::IdentityRecord;
pub use crate::model::identity::StaleValue;

/// Destination of a fetched value in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueTarget {
    /// A file, by absolute path.
    File(PathBuf),
    /// A secret environment variable, by name.
    Variable(String),
    /// A secret argument, by index.
    Argument(u32),
}

/// An input that is a reference to a secret provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceRecord {
    /// Destination of the value.
    pub target: ValueTarget,
    /// Path of the run action in an action tree; empty for an input of the container itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub action: String,
    /// Reference in the request.
    pub reference: SecretReference,
    /// Version of the value; empty if the provider has no versions.
    #[serde(default)]
    pub version: String,
    /// Keyed digest of the value, with the key of request digests.
    pub tag: String,
    /// Time at which the value was last fetched.
    pub fetched_at: Timestamp,
    /// True if the value is refreshed while the container runs.
    pub followed: bool,
    /// Client that submitted the reference, if the value is refreshed. Unset in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requester: Option<Arc<Requester>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// Reason why the value may be outdated; unset if the provider responded to the last poll.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale: Option<StaleValue>,
}

impl SourceRecord {
    /// Returns true if the other record describes the same input.
    fn is_same_input(&self, other: &Self) -> bool {
        (&self.target, &self.action, &self.reference) == (&other.target, &other.action, &other.reference)
    }
}

/// A change of a container's sources, for the task that drives the container.
#[derive(Debug)]
pub(crate) struct SourceUpdate {
    pub(crate) change: SourceChange,
    /// Notified when the status includes the change.
    pub(crate) done: oneshot::Sender<()>,
}

/// Change of a container's secret sources.
#[derive(Debug)]
pub(crate) enum SourceChange {
    /// A client's update replaced or removed files.
    Replaced {
        /// Files whose previous sources no longer apply.
        files: Vec<PathBuf>,
        sources: Vec<SourceRecord>,
    },
    /// The providers were polled; holds the new records.
    Polled(Vec<SourceRecord>),
    /// The container's certificate was replaced, or a renewal failed.
    Identity(Box<IdentityRecord>),
}

impl SourceChange {
    pub(crate) fn apply(self, sources: &mut Vec<SourceRecord>, identity: &mut Option<IdentityRecord>) {
        match self {
            Self::Identity(new) => *identity = Some(*new),
            Self::Replaced { files, sources: new } => {
                sources.retain(
                    |old| !matches!(&old.target, ValueTarget::File(path) if old.action.is_empty() && files.contains(path)),
                );
                sources.extend(new);
            }
            Self::Polled(looked) => {
                for new in looked {
                    if let Some(old) = sources.iter_mut().find(|old| old.is_same_input(&new)) {
                        *old = new;
                    }
                }
            }
        }
    }
}

/// Returns true if any source may be outdated.
pub(crate) fn any_stale(sources: &[SourceRecord]) -> bool {
    sources.iter().any(|source| source.stale.is_some())
}
