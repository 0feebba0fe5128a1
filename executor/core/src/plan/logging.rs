//! Defines the settings of a container's log: rate limits, tags, and a host file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Limits on the rate at which output is kept; an unset value means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogLimits {
    /// Maximum bytes of output per second; 0 keeps no output.
    pub bytes_per_second: Option<u64>,
    /// Maximum lines of output per second; 0 keeps no output.
    pub lines_per_second: Option<u64>,
}

impl LogLimits {
    /// Returns true if there is no limit.
    pub fn is_unlimited(self) -> bool {
        self == Self::default()
    }
}

/// Limits, tags and additional file of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Logging {
    /// Limits on the rate at which output is kept.
    pub limits: LogLimits,
    /// Tags of the log for log forwarders.
    pub tags: BTreeMap<String, String>,
    /// Absolute path of a host file that also receives the output; none if empty.
    pub file: PathBuf,
}
