//! Defines image errors by kind, so that the daemon can distinguish errors of the caller, the registry and the host.
//!
//! Errors never contain credentials: headers and query strings (which can contain signatures) are omitted.

use std::path::PathBuf;
use std::time::Duration;

use executor_core::image::{ConfigError, Digest, Forbidden};
use executor_registry_auth::AuthFileError;

/// Error of an operation on images.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The content does not match the requested digest.
    #[error("{what}: expected digest {declared}, but the content has {got}")]
    WrongDigest {
        /// Description of the document or blob.
        what: String,
        declared: Digest,
        got: Digest,
    },
    /// The content is shorter than declared.
    #[error("{what} is truncated: {got} of {declared} bytes")]
    Truncated {
        /// Description of the document or blob.
        what: String,
        /// Size declared in its manifest, in bytes.
        declared: u64,
        /// Bytes received in all attempts.
        got: u64,
    },
    /// The content is longer than declared.
    #[error("{what} is longer than its declared {declared} bytes")]
    Longer {
        /// Description of the document or blob.
        what: String,
        /// Size declared in its manifest, in bytes.
        declared: u64,
    },
    #[error("{what}: {is} {unit}; the maximum is {most}")]
    TooLarge {
        /// Description of the document, blob or archive.
        what: String,
        /// Actual size or count, in units of `unit`.
        is: u64,
        most: u64,
        /// Unit of `is` and `most`.
        unit: &'static str,
    },
    /// The registry redirects to a destination that is not allowed.
    #[error("{what}: the redirect to {to} is not followed: {why}")]
    Redirect {
        /// Requested object.
        what: String,
        /// Target of the redirect: only scheme, host and port.
        to: String,
        why: &'static str,
    },
    #[error("{what}: {origin} sent {bytes} bytes in {} s; at least {least} are required", .within.as_secs_f32())]
    TooSlow {
        /// Requested object.
        what: String,
        /// Scheme, host and port of the server.
        origin: String,
        bytes: u64,
        within: Duration,
        /// Minimum number of bytes in the time `within`.
        least: u64,
    },
    /// The registry denies read access.
    #[error("registry {registry} refuses {who} access to {what}: {why}")]
    Unauthorized {
        registry: String,
        /// Requested object.
        what: String,
        /// Description of the refused credentials and their source: the request or the operator's file.
        who: String,
        why: &'static str,
    },
    /// A secure connection to the registry cannot be established.
    #[error(
        "{what}: cannot connect securely to {origin}: {why} (trusted certificates: images.ca_file; \
         registries without encryption: images.insecure_registries)"
    )]
    Untrusted {
        /// Requested object.
        what: String,
        /// Scheme, host and port.
        origin: String,
        /// Reason on one line.
        why: String,
    },
    #[error("there is no {what}")]
    NotFound {
        /// Requested object.
        what: String,
    },
    /// The image does not support this machine's platform.
    #[error("{what} is not available for {wanted}{}", only_for(.there))]
    NoPlatform {
        /// Description of the image that has no suitable platform.
        what: String,
        wanted: String,
        there: Vec<String>,
    },
    /// The object has an unsupported type.
    #[error("{what}: {why}")]
    Unsupported {
        what: String,
        /// Type of the object, and the supported types.
        why: String,
    },
    #[error("{what} is malformed: {why}")]
    Malformed { what: String, why: String },
    /// The archive's format differs from the format in the request.
    #[error("{what} is an archive in the format {is}, not {declared}")]
    OtherForm {
        what: String,
        /// Actual format, as the scheme of a reference.
        is: &'static str,
        /// Format in the request.
        declared: &'static str,
    },
    /// The image's configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The registry responds with an error status.
    #[error("{what}: {origin} responded with status {status}")]
    Status {
        /// Requested object.
        what: String,
        /// Scheme, host and port of the server that sent the response.
        origin: String,
        /// HTTP status.
        status: u16,
    },
    /// The connection could not be established, or it broke.
    #[error("{what}: {origin}: {why}")]
    Connection {
        /// Requested object.
        what: String,
        /// Scheme, host and port.
        origin: String,
        /// Reason on one line.
        why: String,
    },
    /// The credentials file cannot be used.
    #[error("the registry credentials file {}", .path.display())]
    AuthFile {
        path: PathBuf,
        #[source]
        source: AuthFileError,
    },
    /// executord has no permission to read the file.
    #[error(
        "executord (uid {uid}) has no permission to read {}: grant this permission, or use `agent-cli run` or `agent-cli image pull`, which read the image with your permissions and send it to executord",
        .path.display()
    )]
    NotReadable {
        path: PathBuf,
        /// User id of executord.
        uid: u32,
    },
    #[error("no space is left for {what} in {}", .dir.display())]
    NoSpace {
        /// Object that was not written.
        what: String,
        dir: PathBuf,
    },
    /// A file operation failed.
    #[error("cannot {what} {}", .path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("image {image} is in use by {by}")]
    InUse {
        image: String,
        /// Container that uses the image.
        by: String,
    },
    /// The image is not present, and the pull policy forbids fetching it.
    #[error("{reference} is not present on this node, and the pull policy is `never`")]
    NotHere {
        /// Reference in the request.
        reference: String,
    },
    /// A layer or the configuration of the image is missing or damaged, and the pull policy forbids fetching it.
    #[error(
        "a part of {reference} is missing or damaged on this node, and the pull policy is `never`: \
        pull the image again"
    )]
    Incomplete {
        /// Reference in the request.
        reference: String,
    },
    /// The image is present, but its source is not allowed by the policy, and the pull policy forbids fetching it.
    #[error(
        "{reference} is present, but did not come from a source that this daemon's configuration allows \
         (images.allow, images.signed), and the pull policy is `never`"
    )]
    FromElsewhere {
        /// Reference in the request.
        reference: String,
    },
    /// The operator's policy does not allow the image.
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    /// The image has no signature that satisfies the operator's rules.
    #[error("{what} has no signature that satisfies this daemon's configuration (images.signed): {why}")]
    Unsigned {
        what: String,
        /// Reasons why the signatures were not accepted.
        why: String,
    },
    /// A layer could not be unpacked.
    #[error("cannot unpack layer {diff_id}")]
    Unpack {
        diff_id: Digest,
        #[source]
        source: UnpackError,
    },
    /// The layer store failed.
    #[error("the layer store failed")]
    Layers(#[source] UnpackError),
    /// The client disconnected before it had sent the complete archive.
    #[error("the archive is truncated after {got} bytes: the client disconnected")]
    Gone {
        /// Bytes received.
        got: u64,
    },
    /// An internal error: a bug in the executor.
    #[error("{0}")]
    Internal(String),
}

/// Error from unpacking a layer, returned by the layer store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnpackError {
    /// The layer is invalid.
    #[error("{0}")]
    Refused(String),
    /// The layer contains entries that the operator does not allow.
    #[error("{0}")]
    NotAllowed(String),
    #[error("{0}")]
    NoSpace(String),
    /// Unpacking is temporarily impossible.
    #[error("{0}")]
    Unavailable(String),
    #[error("{0}")]
    InUse(String),
    /// An internal error: a bug in the executor.
    #[error("{0}")]
    Internal(String),
}

impl ImageError {
    /// Creates the error of a failed file operation. A full disk has its own variant.
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        let path = path.into();
        match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Self::NoSpace {
                what: path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
                dir: path.parent().unwrap_or(&path).to_owned(),
            },
            _ => Self::Io { what, path, source },
        }
    }

    /// Creates the error of a failed operation on a file whose path the caller specified.
    pub(crate) fn caller_io(what: &'static str, path: &std::path::Path, source: std::io::Error) -> Self {
        match source.kind() {
            std::io::ErrorKind::PermissionDenied => {
                Self::NotReadable { path: path.to_owned(), uid: rustix::process::geteuid().as_raw() }
            }
            _ => Self::io(what, path, source),
        }
    }

    /// Returns true if the registry or the connection caused the error, so that a mirror may succeed. Returns false if
    /// the caller, the policy or this host caused the error.
    pub(crate) fn is_registry_error(&self) -> bool {
        !matches!(
            self,
            Self::OtherForm { .. }
                | Self::NotReadable { .. }
                | Self::NoSpace { .. }
                | Self::Io { .. }
                | Self::InUse { .. }
                | Self::NotHere { .. }
                | Self::Incomplete { .. }
                | Self::FromElsewhere { .. }
                | Self::Forbidden(_)
                | Self::Unpack { .. }
                | Self::Layers(_)
                | Self::Gone { .. }
                | Self::Internal(_)
        )
    }

    /// Returns true if a retry could succeed soon.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Truncated { .. } | Self::Connection { .. } => true,
            // Timeout, too early, too many requests, and server errors other than 501 and 505.
            Self::Status { status: 408 | 425 | 429 | 500 | 502..=504 | 506..=599, .. } => true,
            _ => false,
        }
    }
}

/// Lists the platforms of an image, as the end of a sentence. Returns an empty string if there are none.
fn only_for(there: &[String]) -> String {
    if there.is_empty() { String::new() } else { format!(", only for {}", there.join(", ")) }
}
