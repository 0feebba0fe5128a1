//! Lowers sandboxes and containers of the CRI to requests of executor.v1.
//!
//! Each field is supported, refused by name, or ignored (rule C7). These fields are ignored: settings of Windows,
//! SELinux options, and a sandbox's overhead and seccomp filter.

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

/// Maximum size of an object's labels, and maximum size of its annotations, in bytes.
///
/// Kubernetes allows annotations of 256 KiB. The kubelet accepts lists of up to 16 MiB, which contain labels and
/// annotations.
const TEXTS_MAX: usize = 1 << 20;

/// Label that executor-cri sets on each pod and container that it creates in executord.
pub(crate) const LABEL: &str = "executor-cri/config";

/// Returns the digest of a request without secrets. executord compares the digests of two requests with the same id
/// (rule C8).
pub(crate) fn digest(message: &impl Message) -> String {
    hex::encode(Sha256::digest(message.encode_to_vec()))
}

/// Checks the size of an object's labels and annotations.
fn check_texts(labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>, violations: &mut Violations) {
    for (field, texts) in [("config.labels", labels), ("config.annotations", annotations)] {
        let bytes: usize = texts.iter().map(|(key, value)| key.len() + value.len()).sum();
        if bytes > TEXTS_MAX {
            violations.add(field, format!("is {bytes} bytes; the maximum is {TEXTS_MAX}"));
        }
    }
}
