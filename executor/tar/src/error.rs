//! Errors from reading an archive.

use std::io;

use executor_core::text::printable;

/// Maximum length of a name in a message, in bytes.
const NAME_MAX: usize = 200;

/// Error from reading an archive: a fault of the archive or of its source.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    #[error("{}{found} {what}; at most {limit} are allowed", at(.entry))]
    Limit {
        /// Path of the entry; empty if it concerns the whole archive.
        entry: String,
        /// Description of the quantity that exceeds the limit.
        what: &'static str,
        /// Actual amount, or a lower bound.
        found: u64,
        limit: u64,
    },
    /// The archive is malformed or truncated.
    #[error("{}the archive is damaged: {why}", at(.entry))]
    Damaged {
        /// Path of the entry; empty if unknown.
        entry: String,
        why: String,
    },
    /// The entry is not allowed.
    #[error("`{entry}` {why}")]
    Entry { entry: String, why: String },
    /// The bytes of the archive could not be read.
    #[error("cannot read the archive: {0}")]
    Read(io::Error),
}

fn at(entry: &str) -> String {
    if entry.is_empty() { String::new() } else { format!("`{entry}`: ") }
}

impl TarError {
    /// Creates the error of an exceeded limit.
    pub fn limit(entry: &[u8], what: &'static str, found: u64, limit: u64) -> Self {
        Self::Limit { entry: printable(entry, NAME_MAX), what, found, limit }
    }

    /// Creates the error of a malformed archive.
    pub fn damaged(entry: &[u8], why: impl Into<String>) -> Self {
        Self::Damaged { entry: printable(entry, NAME_MAX), why: why.into() }
    }

    /// Creates the error of an entry that is not allowed.
    pub fn entry(entry: &[u8], why: impl Into<String>) -> Self {
        Self::Entry { entry: printable(entry, NAME_MAX), why: why.into() }
    }
}

/// Converts the error for callers that return I/O errors, such as [`crate::Content`]. Returns an error of the source
/// unchanged, and any other error with the kind [`io::ErrorKind::InvalidData`].
impl From<TarError> for io::Error {
    fn from(error: TarError) -> Self {
        match error {
            TarError::Read(error) => error,
            fault => Self::new(io::ErrorKind::InvalidData, fault),
        }
    }
}
