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

use std::collections::BTreeMap;

use prost::Message;
use sha2::{Digest as _, Sha256};

use crate::failure::Violations;

/// Largest labels, and largest annotations, of an object in bytes. They are in every list, whose size the kubelet limits to
/// 16 MiB. Kubernetes allows 256 KiB of annotations.
const TEXTS_MAX: usize = 1 << 20;

/// Label of all pods and containers of executord that executor-cri has created.
pub(crate) const LABEL: &str = "executor-cri/config";

/// Returns the digest of a request without secrets, by which executord compares two requests with the same id
/// (rule C8).
pub(crate) fn digest(message: &impl Message) -> String {
    hex::encode(Sha256::digest(message.encode_to_vec()))
}

/// Checks the size of an object's labels and annotations.
fn check_texts(labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>, violations: &mut Violations) {
    for (field, texts) in [("config.labels", labels), ("config.annotations", annotations)] {
        let bytes: usize = texts.iter().map(|(key, value)| key.len() + value.len()).sum();
        if bytes > TEXTS_MAX {
            violations.add(field, format!("has {bytes} bytes; at most {TEXTS_MAX} are allowed"));
        }
    }
}
