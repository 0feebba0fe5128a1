//! Describes downloads and uploads of a tree of actions, without their URLs.
//!
//! A URL is secret: like the arguments of a step, it is kept in the container's secret volume and is not part of a
//! plan.

use serde::{Deserialize, Serialize};

use super::UserRef;

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Files are copied into the container.
    Download,
    /// Files are copied out of the container.
    Upload,
}

impl Direction {
    /// Returns the name of the transfer's action in the API.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Download => "download",
            Self::Upload => "upload",
        }
    }

    /// Returns the field of the transfer's action that holds the URL.
    pub fn url_field(self) -> &'static str {
        match self {
            Self::Download => "from",
            Self::Upload => "to",
        }
    }

    /// Returns the field of the transfer's action that holds the path in the container.
    pub fn path_field(self) -> &'static str {
        match self {
            Self::Download => "to",
            Self::Upload => "from",
        }
    }
}

/// Algorithm of a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChecksumAlgorithm {
    /// MD5; detects only accidental errors.
    Md5,
    /// SHA-1; detects only accidental errors.
    Sha1,
    /// SHA-256.
    Sha256,
}

impl ChecksumAlgorithm {
    /// Every algorithm.
    pub const ALL: [Self; 3] = [Self::Md5, Self::Sha1, Self::Sha256];

    /// Returns the algorithm's name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Md5 => "md5",
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
        }
    }

    /// Returns the number of bytes of a checksum.
    pub fn digest_len(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }
}

/// Expected checksum of an artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checksum {
    /// Algorithm of `value`.
    pub algorithm: ChecksumAlgorithm,
    /// Checksum, hexadecimal in lower case.
    pub value: String,
}

/// A download or an upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedTransfer {
    /// Path of the transfer's action, unique within the container.
    pub id: String,
    /// Download into the container, or upload from it.
    pub direction: Direction,
    /// Name of the artifact, for the log and for errors; may be empty.
    pub artifact: String,
    /// Path of the downloaded or uploaded files in the container.
    pub path: String,
    /// User that reads or writes the files.
    pub user: UserRef,
    /// Log source of the transfer's log lines.
    pub log_source: String,
    /// Expected checksum of a download, if the request has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<Checksum>,
    /// Key of a download in the artifact cache; empty if the download is not cached.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cache_key: String,
}
