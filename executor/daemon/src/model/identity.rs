//! Record of a container's certificate: names, times and paths, but no key.

use std::path::PathBuf;

use executor_core::identity::IdentityNames;
use executor_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The current certificate of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityRecord {
    /// Names in the certificate, as requested.
    pub names: IdentityNames,
    /// Requested lifetime, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// Serial number in hexadecimal.
    pub serial: String,
    /// Start of the certificate's validity period.
    pub not_before: Timestamp,
    /// End of the certificate's validity period.
    pub not_after: Timestamp,
    /// Time at which the certificate is renewed.
    pub renew_at: Timestamp,
    /// Paths of certificate, key and chain in the container.
    pub files: [PathBuf; 3],
    /// Number of times that the certificate was renewed.
    #[serde(default)]
    pub replaced: u64,
    /// Reason why the last renewal failed; unset if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale: Option<StaleValue>,
}

/// Reason why a value or a certificate may be outdated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaleValue {
    /// Time of the first failure.
    pub since: Timestamp,
    /// Reason of the last failure.
    pub why: String,
}
