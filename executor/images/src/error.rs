//! What can go wrong with an image, told apart: who serves the caller must know whom to blame.
//!
//! Nothing here holds a credential: headers and query strings (which can hold signatures) are in no error.

use std::path::PathBuf;
use std::time::Duration;

use executor_core::image::{ConfigError, Digest, Forbidden};
use executor_registry_auth::AuthFileError;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A registry gave other content than its name says.
    #[error("{what} is {declared} by its name, but its content is {got}")]
    WrongDigest {
        /// Which document or blob.
        what: String,
        /// Its name.
        declared: Digest,
        /// Its content's.
        got: Digest,
    },
    /// It ended early.
    #[error("{what} ended after {got} of its {declared} bytes")]
    Truncated {
        /// Which.
        what: String,
        /// As its manifest says.
        declared: u64,
        /// What came, over all attempts.
        got: u64,
    },
    /// It goes on beyond its end.
    #[error("{what} goes on beyond its declared {declared} bytes")]
    Longer {
        /// Which.
        what: String,
        /// As its manifest says.
        declared: u64,
    },
    /// It is larger than is taken.
    #[error("{what} has {is} {unit}; at most {most}")]
    TooLarge {
        /// Which.
        what: String,
        /// How much.
        is: u64,
        /// The limit.
        most: u64,
        /// Of what.
        unit: &'static str,
    },
    /// A registry sent us where it must not.
    #[error("{what}: the redirect to {to} is not followed: {why}")]
    Redirect {
        /// What was asked for.
        what: String,
        /// Scheme, host and port alone.
        to: String,
        /// Why not.
        why: &'static str,
    },
    /// It takes too long.
    #[error("{what}: {origin} sent {bytes} bytes in {} s; at least {least} are required", .within.as_secs_f32())]
    TooSlow {
        /// What was asked for.
        what: String,
        /// Who is slow.
        origin: String,
        /// What came.
        bytes: u64,
        /// In which time.
        within: Duration,
        /// What must come.
        least: u64,
    },
    /// The registry does not let the caller read it.
    #[error("registry {registry} refuses {who}: {why}: {what}")]
    Unauthorized {
        /// The registry.
        registry: String,
        /// What was asked for.
        what: String,
        /// Whom it refused, and whose words these are: the request's or the operator's.
        who: String,
        /// Why.
        why: &'static str,
    },
    /// No secure connection to the registry is possible.
    #[error(
        "{what}: {origin}: {why} (trusted certificates: images.ca_file; registries without encryption: images.insecure_registries)"
    )]
    Untrusted {
        /// What was asked for.
        what: String,
        /// Scheme, host and port.
        origin: String,
        /// In one line.
        why: String,
    },
    /// There is none.
    #[error("there is no {what}")]
    NotFound {
        /// What was asked for.
        what: String,
    },
    /// It is not for this kind of machine.
    #[error("{what} is not available for {wanted}, only for {}", .there.join(", "))]
    NoPlatform {
        /// The image.
        what: String,
        /// Ours.
        wanted: String,
        /// What there is.
        there: Vec<String>,
    },
    /// It is of a kind that is not taken.
    #[error("{what}: {why}")]
    Unsupported {
        /// Which.
        what: String,
        /// What it is, and what would be taken.
        why: String,
    },
    /// It is not what it must be.
    #[error("{what} is malformed: {why}")]
    Malformed {
        /// Which.
        what: String,
        /// How.
        why: String,
    },
    /// Its configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The registry answers with an error of its own.
    #[error("{what}: {origin} answers with status {status}")]
    Status {
        /// What was asked for.
        what: String,
        /// Who answers.
        origin: String,
        /// HTTP's number.
        status: u16,
    },
    /// No connection, or it broke.
    #[error("{what}: {origin}: {why}")]
    Connection {
        /// What was asked for.
        what: String,
        /// Whom.
        origin: String,
        /// In one line.
        why: String,
    },
    /// The file with credentials.
    #[error("the file with credentials for registries {}", .path.display())]
    AuthFile {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: AuthFileError,
    },
    /// It is not executord's to read.
    #[error(
        "{} cannot be read by executord's user (uid {uid}): let that user read it, or send the image: `agent-cli run` and `agent-cli image pull` do so for what their caller can read",
        .path.display()
    )]
    NotReadable {
        /// What.
        path: PathBuf,
        /// Who reads it.
        uid: u32,
    },
    /// No room.
    #[error("no space is left for {what} in {}", .dir.display())]
    NoSpace {
        /// What was to be written.
        what: String,
        /// Where.
        dir: PathBuf,
    },
    /// The disk.
    #[error("cannot {what} {}", .path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// It is in use.
    #[error("image {image} is in use by {by}")]
    InUse {
        /// Which.
        image: String,
        /// Who uses it.
        by: String,
    },
    /// It is not there, and must not be fetched.
    #[error("{reference} is not present on this node, and the pull policy is never")]
    NotHere {
        /// As it was asked for.
        reference: String,
    },
    /// It is there, but came another way than the policy allows, and must not be fetched.
    #[error(
        "{reference} is present, but did not come from a source that this daemon's configuration allows (images.allow, images.signed), and \
         the pull policy is never"
    )]
    FromElsewhere {
        /// As it was asked for.
        reference: String,
    },
    /// The operator's policy does not allow it.
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    /// It has no signature that the operator wants.
    #[error("{what} has no valid signature that this daemon's configuration asks for (images.signed): {why}")]
    Unsigned {
        /// The image.
        what: String,
        /// What was found.
        why: String,
    },
    /// A layer could not be unpacked.
    #[error("layer {diff_id}")]
    Unpack {
        /// Which.
        diff_id: Digest,
        /// Why.
        #[source]
        source: UnpackError,
    },
    /// The store of layers does not answer.
    #[error("the store of layers")]
    Layers(#[source] UnpackError),
    /// What was given to import went away before its end.
    #[error("the archive ended after {got} bytes: its sender went away")]
    Gone {
        /// What had come.
        got: u64,
    },
    /// A fault of ours.
    #[error("{0}")]
    Internal(String),
}

/// Why a layer was not unpacked, from whoever unpacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnpackError {
    /// The layer itself is at fault.
    #[error("{0}")]
    Refused(String),
    /// The layer has what the operator does not allow.
    #[error("{0}")]
    NotAllowed(String),
    /// No room.
    #[error("{0}")]
    NoSpace(String),
    /// Not now: nobody is there to do it.
    #[error("{0}")]
    Unavailable(String),
    /// It is in use.
    #[error("{0}")]
    InUse(String),
    /// A fault of ours.
    #[error("{0}")]
    Internal(String),
}

impl ImageError {
    /// Of the disk: a full one is told apart.
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

    /// Of a file of the caller's.
    pub(crate) fn of_callers(what: &'static str, path: &std::path::Path, source: std::io::Error) -> Self {
        match source.kind() {
            std::io::ErrorKind::PermissionDenied => {
                Self::NotReadable { path: path.to_owned(), uid: rustix::process::geteuid().as_raw() }
            }
            _ => Self::io(what, path, source),
        }
    }

    /// The same could go well in a moment.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Truncated { .. } | Self::Connection { .. } => true,
            // Too late, too early, too many; and what a server says of itself, but for what it cannot do at all.
            Self::Status { status: 408 | 425 | 429 | 500 | 502..=504 | 506..=599, .. } => true,
            _ => false,
        }
    }
}
