//! Errors of unpacking a layer.

use executor_core::text::printable;
use std::io;

use crate::DiffId;

/// Fault of a layer or of the host.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The blob's form.
    #[error("media type {0:?} is not that of a layer (tar, tar+gzip, tar+zstd)")]
    MediaType(String),
    /// A limit is exceeded.
    #[error("{}{what}: {found}; at most {limit}", at(.entry))]
    Limit {
        /// Path of the entry; empty if it concerns the whole layer.
        entry: String,
        /// Limited quantity.
        what: &'static str,
        /// Amount, or a lower bound of it.
        found: u64,
        /// Limit.
        limit: u64,
    },
    /// The blob is not a complete archive.
    #[error("{}the archive is damaged: {why}", at(.entry))]
    Archive {
        /// Path of the entry; empty if it is not known.
        entry: String,
        /// Fault.
        why: String,
    },
    /// An entry that must not be unpacked.
    #[error("`{entry}` {why}")]
    Entry {
        /// Path of the entry.
        entry: String,
        /// Fault.
        why: String,
    },
    /// A device, which the layer may not bring.
    #[error("`{entry}` is a device: {why}")]
    Device {
        /// Path of the entry.
        entry: String,
        /// Reason.
        why: &'static str,
    },
    /// The content is that of another layer.
    #[error("the layer's diffID is {found}; expected {expected}")]
    DiffId {
        /// Asked for.
        expected: DiffId,
        /// Computed.
        found: DiffId,
    },
    /// A layer that it lies on is not in the store.
    #[error("layer {0} below it is not unpacked")]
    Parent(DiffId),
    /// The host's fault.
    #[error("{about}: {error}")]
    Host {
        /// Operation and object.
        about: String,
        /// Cause.
        error: io::Error,
    },
}

/// Longest name that is told, in bytes.
const NAME_MAX: usize = 200;

fn at(entry: &str) -> String {
    if entry.is_empty() { String::new() } else { format!("`{entry}`: ") }
}

impl UnpackError {
    /// A limit that `found` is above.
    pub(crate) fn limit(entry: &[u8], what: &'static str, found: u64, limit: u64) -> Self {
        Self::Limit { entry: shown(entry), what, found, limit }
    }

    pub(crate) fn archive(entry: &[u8], why: impl Into<String>) -> Self {
        Self::Archive { entry: shown(entry), why: why.into() }
    }

    pub(crate) fn device(entry: &[u8], why: &'static str) -> Self {
        Self::Device { entry: shown(entry), why }
    }

    pub(crate) fn entry(entry: &[u8], why: impl Into<String>) -> Self {
        Self::Entry { entry: shown(entry), why: why.into() }
    }
}

/// A name of an archive in a message: whatever is in it, one line.
pub(crate) fn shown(name: &[u8]) -> String {
    printable(name, NAME_MAX)
}

/// Adds to an error of the system what it was about.
pub(crate) trait Context<T> {
    fn context(self, about: impl FnOnce() -> String) -> Result<T, UnpackError>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, about: impl FnOnce() -> String) -> Result<T, UnpackError> {
        self.map_err(|error| UnpackError::Host { about: about(), error: error.into() })
    }
}
