//! Certificate of a container: what is kept of it with the container. Names, times and paths, and no key.

use std::path::PathBuf;

use executor_core::identity::IdentityNames;
use executor_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Certificate of a container that is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityRecord {
    /// Names, as in the request.
    pub names: IdentityNames,
    /// Life in seconds, as in the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// Serial number, hexadecimal.
    pub serial: String,
    /// Beginning.
    pub not_before: Timestamp,
    /// End.
    pub not_after: Timestamp,
    /// Time at which it is replaced.
    pub renew_at: Timestamp,
    /// Certificate, key and chain in the container.
    pub files: [PathBuf; 3],
    /// Number of times that it was replaced.
    #[serde(default)]
    pub replaced: u64,
    /// Set while it cannot be replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale: Option<Stale>,
}

/// Why a value or a certificate may be old.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stale {
    /// First failure.
    pub since: Timestamp,
    /// Last failure's reason.
    pub why: String,
}
