//! Defines the settings of a process's termination message, as in Kubernetes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Default path of the file for the termination message.
pub const TERMINATION_PATH_DEFAULT: &str = "/dev/termination-log";
/// Required path prefix of a message file directly below /dev.
pub const TERMINATION_DEV_PREFIX: &str = "/dev/termination-";
/// Default maximum size of a message, in bytes.
pub const TERMINATION_BYTES_DEFAULT: u32 = 4096;

/// File for the termination message of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminationMessage {
    /// File in the container. In a draft, empty = the default.
    pub path: PathBuf,
    /// Maximum number of bytes that are kept. In a draft, 0 = the default.
    pub bytes_max: u32,
    /// True if the end of the log is used when the process fails without a message.
    pub fallback_to_logs: bool,
}
