//! Settings of the operator.

use std::path::PathBuf;
use std::time::Duration;

use executor_core::image::ImagePolicy;

use crate::signatures::SignaturePolicy;

/// Bounds and places.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory of the store.
    pub dir: PathBuf,
    /// Registries that are spoken to without encryption: `host` for every port, or `host:port`.
    pub insecure_registries: Vec<String>,
    /// Certificates (PEM) that are trusted beside the system's.
    pub ca_file: Option<PathBuf>,
    /// Docker's configuration file with credentials for where a call brings none.
    pub docker_config: Option<PathBuf>,
    /// Maximum bytes of an image: of its blobs as declared, and of each layer when it is unpacked.
    pub image_bytes_max: u64,
    /// Bytes of images, as in their registries, that are kept; beyond it unused images are removed, the longest unused
    /// first. 0 = no limit.
    pub bytes_budget: u64,
    /// A registry must send [`Self::bytes_least`] within this time, always anew.
    pub patience: Duration,
    /// Minimum number of bytes within [`Self::patience`].
    pub bytes_least: u64,
    /// Images that may be fetched, imported and used.
    pub policy: ImagePolicy,
    /// Signatures that images must have.
    pub signatures: SignaturePolicy,
}

impl Settings {
    /// Returns the defaults for a store in `dir`.
    pub fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            insecure_registries: own_names(),
            ca_file: None,
            docker_config: None,
            image_bytes_max: 16 << 30,
            bytes_budget: 0,
            patience: Duration::from_secs(30),
            bytes_least: 32 << 10,
            policy: ImagePolicy::default(),
            signatures: SignaturePolicy::default(),
        }
    }

    /// Tells whether connections to a registry are not encrypted.
    pub(crate) fn is_insecure(&self, registry: &str) -> bool {
        is_insecure(&self.insecure_registries, registry)
    }
}

/// Tells whether a registry is in a list of those that are spoken to without encryption.
pub(crate) fn is_insecure(list: &[String], registry: &str) -> bool {
    let host = match registry.rfind(':') {
        Some(colon) if !registry[colon..].contains(']') => &registry[..colon],
        _ => registry,
    };
    list.iter().any(|entry| entry == registry || entry == host)
}

/// This machine's own names: registries that are spoken to without encryption by default.
pub(crate) fn own_names() -> Vec<String> {
    ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_without_a_port_covers_every_port() {
        let settings = Settings {
            insecure_registries: vec!["a".into(), "b:80".into(), "[::1]".into()],
            ..Settings::new("/".into())
        };
        let table = [
            ("a", true),
            ("a:5000", true),
            ("b:80", true),
            ("b", false),
            ("b:81", false),
            ("[::1]:5", true),
            ("c", false),
        ];
        for (registry, insecure) in table {
            assert_eq!(settings.is_insecure(registry), insecure, "{registry}");
        }
    }
}
