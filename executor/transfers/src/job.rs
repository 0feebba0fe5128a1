//! Jobs of a worker, and its reports. Each is one packet; the URL is in none, but in a memory file beside it.

use std::path::PathBuf;
use std::time::Duration;

use executor_core::plan::{AddressRange, Checksum};
use serde::{Deserialize, Serialize};

/// Argument of executord's program that makes it a worker.
pub const WORKER_ARGUMENT: &str = "transfer-worker";
/// Largest packet of either side, in bytes.
pub const PACKET_MAX: usize = 48 << 10;

/// A job. Descriptors accompany it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Job {
    /// Report the place of a URL. Descriptor: the memory file with the URL.
    Locate,
    /// Fetch a URL into a file. Descriptors: the memory file with the URL, the file.
    Fetch(Fetch),
    /// Look at a file: its checksum, its kind, and whether it may be unpacked. Descriptor: the file.
    Look(Look),
    /// Write a file as a tar archive. Descriptors: the file, the pipe to whoever unpacks it.
    Unpack(Unpack),
    /// Send what comes out of a container to a URL. Descriptors: the memory file with the URL, the pipe.
    Send(Send),
}

impl Job {
    /// Returns the processor time that the job may use, in seconds: enough for the bytes that it may have, and far less than the
    /// time of a transfer.
    pub fn processor_seconds_max(&self) -> u64 {
        let bytes = match self {
            Self::Locate => 0,
            Self::Fetch(Fetch { rules, .. }) | Self::Send(Send { rules }) => rules.bytes_max,
            Self::Look(Look { unpacked_bytes_max, .. }) | Self::Unpack(Unpack { unpacked_bytes_max, .. }) => {
                *unpacked_bytes_max
            }
        };
        executor_core::limits::processor_seconds(bytes)
    }
}

/// Rules for connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Addresses that are denied.
    pub denied: Vec<AddressRange>,
    /// Exceptions from them.
    pub allowed: Vec<AddressRange>,
    /// Maximum number of redirects.
    pub redirects_max: u32,
    /// Longest time without a byte.
    pub idle: Duration,
    /// Certificates that are trusted beside the system's.
    pub ca_file: Option<PathBuf>,
    /// Maximum number of bytes.
    pub bytes_max: u64,
}

/// What tells a copy of an artifact from another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validators {
    /// `ETag` of the answer.
    pub etag: Option<String>,
    /// `Last-Modified` of the answer.
    pub last_modified: Option<String>,
    /// Digest of the URL without its query: another server cannot say of a copy that it is the present one.
    pub place: String,
}

impl Validators {
    /// Returns whether a server can be asked about the copy.
    pub fn can_be_asked(&self) -> bool {
        self.etag.is_some() || self.last_modified.is_some()
    }
}

/// Fetches a URL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// Rules.
    pub rules: Rules,
    /// Validators of the copy that is there already.
    pub known: Validators,
}

/// Looks at a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// Checksum that it must have.
    pub checksum: Option<Checksum>,
    /// Maximum bytes of an archive's content.
    pub unpacked_bytes_max: u64,
}

/// Form of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// A tar archive.
    Tar,
    /// A tar archive, compressed by gzip.
    TarGzip,
    /// A zip archive.
    Zip,
    /// Anything else: it is the file itself.
    File,
}

/// Writes a file as a tar archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpack {
    /// Form of the file.
    pub form: Form,
    /// Name of a file that is no archive.
    pub name: String,
    /// Maximum bytes of an archive's content.
    pub unpacked_bytes_max: u64,
}

/// Sends to a URL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Send {
    /// Rules.
    pub rules: Rules,
}

/// Report of a worker, its last word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Report {
    /// The URL was fetched.
    Fetched {
        /// Validators of the copy.
        validators: Validators,
    },
    /// The URL was read.
    Located {
        /// Digest of the URL without its query, as in [`Validators::place`].
        place: String,
    },
    /// The copy that is there already is the present one.
    NotModified,
    /// The file may be unpacked.
    Looked {
        /// Form of the file.
        form: Form,
        /// Size of the file in bytes.
        bytes: u64,
    },
    /// Everything was written.
    Unpacked,
    /// Everything was sent.
    Sent {
        /// Bytes of the body.
        bytes: u64,
    },
    /// It failed.
    Failed(Failure),
}

/// Failure of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Reason on one line, without any part of the URL but scheme, host and port.
    pub why: String,
    /// Kind.
    pub kind: FailureKind,
}

/// Kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// Another attempt would fail, too.
    Final,
    /// Another attempt may succeed.
    Transient,
    /// The process in the container has ended early, and tells why.
    Pipe,
}

impl Failure {
    /// A failure that is final.
    pub fn last(why: impl Into<String>) -> Self {
        Self { why: why.into(), kind: FailureKind::Final }
    }

    /// A failure that may pass.
    pub fn transient(why: impl Into<String>) -> Self {
        Self { why: why.into(), kind: FailureKind::Transient }
    }
}
