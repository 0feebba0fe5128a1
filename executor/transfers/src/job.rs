//! Defines jobs and reports of a worker. Each job and each report is one packet. URLs are not in the packet but in a
//! separate memory file.

use std::path::PathBuf;
use std::time::Duration;

use executor_core::plan::{AddressRange, Checksum};
use serde::{Deserialize, Serialize};

/// Command-line argument that starts executord's program as a worker.
pub const WORKER_ARGUMENT: &str = "transfer-worker";
/// Maximum size of a packet in either direction, in bytes.
pub const PACKET_MAX: usize = 48 << 10;

/// A job. Its descriptors are sent with the packet, in the order given below.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Job {
    /// Report the digest of a URL. Descriptor: the memory file that contains the URL.
    Locate,
    /// Download a URL to a file. Descriptors: the memory file that contains the URL, the file.
    Fetch(Fetch),
    /// Inspect a file: its checksum, its format, and whether it may be unpacked. Descriptor: the file.
    Look(InspectJob),
    /// Write a file as a tar archive. Descriptors: the file, the pipe to the process that unpacks it.
    Unpack(Unpack),
    /// Upload output of a container to a URL. Descriptors: the memory file that contains the URL, the pipe.
    Send(Send),
}

impl Job {
    /// Returns the CPU time limit of the job in seconds. The limit is enough for the permitted bytes, and much lower
    /// than the maximum duration of a transfer.
    pub fn processor_seconds_max(&self) -> u64 {
        let bytes = match self {
            Self::Locate => 0,
            Self::Fetch(Fetch { rules, .. }) | Self::Send(Send { rules }) => rules.bytes_max,
            Self::Look(InspectJob { unpacked_bytes_max, .. }) | Self::Unpack(Unpack { unpacked_bytes_max, .. }) => {
                *unpacked_bytes_max
            }
        };
        executor_core::limits::processor_seconds(bytes)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    pub denied: Vec<AddressRange>,
    /// Exceptions from [`Rules::denied`].
    pub allowed: Vec<AddressRange>,
    pub redirects_max: u32,
    /// Maximum time without a received byte.
    pub idle: Duration,
    /// File with trusted certificates, in addition to the system's.
    pub ca_file: Option<PathBuf>,
    pub bytes_max: u64,
}

/// Validators for a conditional request, which identify a copy of an artifact.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validators {
    /// `ETag` of the response.
    pub etag: Option<String>,
    /// `Last-Modified` of the response.
    pub last_modified: Option<String>,
    /// Digest of the URL without its query. The digest ensures that only the same server can confirm the copy as
    /// current.
    pub place: String,
}

impl Validators {
    /// Returns true if the copy has a validator for a conditional request.
    pub fn can_be_asked(&self) -> bool {
        self.etag.is_some() || self.last_modified.is_some()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    pub rules: Rules,
    /// Validators of the existing copy.
    pub known: Validators,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectJob {
    /// Expected checksum.
    pub checksum: Option<Checksum>,
    /// Maximum size of an archive's content, in bytes.
    pub unpacked_bytes_max: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileFormat {
    Tar,
    /// A gzip-compressed tar archive.
    TarGzip,
    Zip,
    /// Any other format: a single file.
    File,
}

/// Job to write a file as a tar archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpack {
    pub form: FileFormat,
    /// Name for the file if it is not an archive.
    pub name: String,
    /// Maximum size of an archive's content, in bytes.
    pub unpacked_bytes_max: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Send {
    pub rules: Rules,
}

/// Final report of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Report {
    Fetched {
        /// Validators of the downloaded copy.
        validators: Validators,
    },
    /// The URL was parsed.
    Located {
        /// Digest of the URL without its query, as in [`Validators::place`].
        place: String,
    },
    /// The existing copy is current.
    NotModified,
    /// The file may be unpacked.
    Looked {
        form: FileFormat,
        bytes: u64,
    },
    Unpacked,
    Sent {
        /// Number of bytes in the body that was sent.
        bytes: u64,
    },
    Failed(Failure),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Reason on one line. The reason contains no part of the URL other than scheme, host and port.
    pub why: String,
    pub kind: FailureKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// The failure is permanent: a retry would fail, too.
    Final,
    /// The failure may be temporary: a retry may succeed.
    Transient,
    /// The process in the container exited early. That process reports the reason.
    Pipe,
}

impl Failure {
    pub fn last(why: impl Into<String>) -> Self {
        Self { why: why.into(), kind: FailureKind::Final }
    }

    pub fn transient(why: impl Into<String>) -> Self {
        Self { why: why.into(), kind: FailureKind::Transient }
    }
}
