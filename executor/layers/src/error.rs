//! Defines the errors of unpacking a layer.

use std::io;

use executor_core::text::printable;
use executor_tar::TarError;

use crate::DiffId;

/// Error from unpacking a layer. The cause is either the layer or the host.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The media type of the blob is not supported.
    #[error("media type {0:?} is not supported for layers; use tar, tar+gzip or tar+zstd")]
    MediaType(String),
    /// The archive is malformed, exceeds a limit, or has an entry that is not allowed.
    #[error(transparent)]
    Archive(TarError),
    /// The entry is a device that the layer may not contain.
    #[error("`{entry}` is a device: {why}")]
    Device { entry: String, why: &'static str },
    /// The content does not have the requested digest.
    #[error("the layer's diffID is {found}; expected {expected}")]
    DiffId {
        /// DiffID that the caller requested.
        expected: DiffId,
        /// DiffID of the unpacked content.
        found: DiffId,
    },
    /// A layer below this layer is not in the store.
    #[error("parent layer {0} is not unpacked")]
    Parent(DiffId),
    /// A system call failed.
    #[error("{about}: {error}")]
    Host {
        /// Operation and the object that it failed on.
        about: String,
        error: io::Error,
    },
}

/// Maximum length of a name in a message, in bytes.
const NAME_MAX: usize = 200;

impl UnpackError {
    /// Creates the error for an exceeded limit.
    pub(crate) fn limit(entry: &[u8], what: &'static str, found: u64, limit: u64) -> Self {
        Self::Archive(TarError::limit(entry, what, found, limit))
    }

    pub(crate) fn archive(entry: &[u8], why: impl Into<String>) -> Self {
        Self::Archive(TarError::damaged(entry, why))
    }

    pub(crate) fn device(entry: &[u8], why: &'static str) -> Self {
        Self::Device { entry: shown(entry), why }
    }

    pub(crate) fn entry(entry: &[u8], why: impl Into<String>) -> Self {
        Self::Archive(TarError::entry(entry, why))
    }
}

/// A read error from a blob's stream contains an [`UnpackError`], which is restored.
impl From<TarError> for UnpackError {
    fn from(error: TarError) -> Self {
        match error {
            TarError::Read(error) => error
                .downcast::<Self>()
                .unwrap_or_else(|error| Self::Host { about: "cannot read the archive".into(), error }),
            fault => Self::Archive(fault),
        }
    }
}

/// Formats a name from an archive for an error message, as one line without control characters.
pub(crate) fn shown(name: &[u8]) -> String {
    printable(name, NAME_MAX)
}

/// Adds the operation and object to a system error.
pub(crate) trait Context<T> {
    fn context(self, about: impl FnOnce() -> String) -> Result<T, UnpackError>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, about: impl FnOnce() -> String) -> Result<T, UnpackError> {
        self.map_err(|error| UnpackError::Host { about: about(), error: error.into() })
    }
}
