//! Lowers sandboxes and containers of the CRI to requests of executor.v1.
//!
//! A field is honoured, refused by name, or ignored because a rule says so (rule C7): settings of Windows, the overhead and
//! the seccomp filter of a sandbox, SELinux where the host has none.

pub(crate) mod container;
mod mounts;
mod network;
pub(crate) mod process;
pub(crate) mod resources;
pub(crate) mod sandbox;
mod security;

use prost::Message;
use sha2::{Digest as _, Sha256};

/// Label of all pods and containers of executord that executor-cri has created.
pub(crate) const LABEL: &str = "executor-cri/config";

/// Returns the digest of a request without secrets, by which executord compares two requests with the same id
/// (rule C8).
pub(crate) fn digest(message: &impl Message) -> String {
    hex::encode(Sha256::digest(message.encode_to_vec()))
}
