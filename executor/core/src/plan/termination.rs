//! Message that a process leaves about its end, as Kubernetes has it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Path of the file where a request says nothing.
pub const TERMINATION_PATH_DEFAULT: &str = "/dev/termination-log";
/// Prefix of the names that the file can have right below /dev.
pub const TERMINATION_DEV_PREFIX: &str = "/dev/termination-";
/// Maximum bytes of a message where a request says nothing.
pub const TERMINATION_BYTES_DEFAULT: u32 = 4096;

/// Message that a process leaves about its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminationMessage {
    /// File in the container; empty in a draft for the default.
    pub path: PathBuf,
    /// Maximum bytes that are kept; 0 in a draft for the default.
    pub bytes_max: u32,
    /// The end of the log takes its place when the process fails without a message.
    pub fallback_to_logs: bool,
}
