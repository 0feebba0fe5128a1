//! Defines the operator's settings for images.

use std::path::PathBuf;
use std::time::Duration;

use executor_core::image::{ImagePolicy, ImageReference, Repository};
use executor_http::Proxy;

use crate::signatures::SignaturePolicy;

/// The operator's settings for images: limits, paths and rules.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory of the store.
    pub dir: PathBuf,
    /// Registries that are accessed without encryption: `host` for every port, or `host:port`.
    pub insecure_registries: Vec<String>,
    /// Mirrors that are tried before a registry.
    pub mirrors: Vec<Mirrors>,
    /// Proxy for connections to registries.
    pub proxy: Option<Proxy>,
    /// Trusted certificates (PEM), in addition to the system's.
    pub ca_file: Option<PathBuf>,
    /// Docker's configuration file with credentials, used if the request has no credentials.
    pub docker_config: Option<PathBuf>,
    /// Maximum size of an image in bytes. Applies to the sum of the declared blob sizes, and to each layer's unpacked
    /// size.
    pub image_bytes_max: u64,
    /// Budget for all images in bytes, as stored in registries. If the budget is exceeded, unused images are removed,
    /// least recently used first. 0 = no limit.
    pub bytes_budget: u64,
    /// Period in which a registry must send at least [`Self::bytes_least`].
    pub patience: Duration,
    /// Minimum number of bytes per [`Self::patience`].
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
            mirrors: Vec::new(),
            proxy: None,
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

    /// Returns the mirrors of a repository, in the order in which they are tried.
    pub(crate) fn mirrors_of(&self, repository: &Repository) -> Vec<Repository> {
        let of_registry = self.mirrors.iter().filter(|one| one.registry == repository.registry());
        of_registry.flat_map(|one| &one.mirrors).filter_map(|mirror| mirror.repository(repository.path())).collect()
    }

    /// Returns true if connections to a registry are not encrypted.
    pub(crate) fn is_insecure(&self, registry: &str) -> bool {
        is_insecure(&self.insecure_registries, registry)
    }
}

/// Mirrors of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirrors {
    /// The mirrored registry, as named in references.
    pub registry: String,
    /// Mirrors in the order in which they are tried.
    pub mirrors: Vec<Mirror>,
}

/// A mirror: its host, and the path prefix of the mirrored repositories, `HOST[:PORT][/PATH]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror(String);

impl std::str::FromStr for Mirror {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains("://") || text.contains('@') {
            return Err("must be HOST[:PORT][/PATH], without a scheme or a user name".into());
        }
        let mirror = Self(text.trim_end_matches('/').to_ascii_lowercase());
        let host = mirror.0.split('/').next().unwrap_or_default();
        match format!("docker://{}/repository", mirror.0).parse() {
            Ok(ImageReference::Registry(repository, _)) if repository.registry() == host => Ok(mirror),
            Ok(_) => Err("must be HOST[:PORT][/PATH], where HOST has a dot or a port, or is localhost".into()),
            Err(fault) => Err(format!("must be HOST[:PORT][/PATH]: {fault}")),
        }
    }
}

impl Mirror {
    /// Returns the repository's copy in the mirror. Returns `None` if its name would be too long.
    fn repository(&self, path: &str) -> Option<Repository> {
        match format!("docker://{}/{path}", self.0).parse() {
            Ok(ImageReference::Registry(repository, _)) => Some(repository),
            _ => None,
        }
    }
}

/// Returns true if a registry is in a list of registries without encryption.
pub(crate) fn is_insecure(list: &[String], registry: &str) -> bool {
    let host = match registry.rfind(':') {
        Some(colon) if !registry[colon..].contains(']') => &registry[..colon],
        _ => registry,
    };
    list.iter().any(|entry| entry == registry || entry == host)
}

/// Returns this machine's own names: registries that are accessed without encryption by default.
pub(crate) fn own_names() -> Vec<String> {
    ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_without_port_matches_every_port() {
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

    #[test]
    fn mirrors_have_repositories_below_a_path() {
        let mirrors = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let settings = Settings {
            mirrors: vec![
                Mirrors { registry: "docker.io".into(), mirrors: mirrors(&["m.example/hub/", "[::1]:5000"]) },
                Mirrors { registry: "ghcr.io".into(), mirrors: mirrors(&["localhost/ghcr"]) },
            ],
            ..Settings::new("/".into())
        };
        let of = |reference: &str| match reference.parse() {
            Ok(ImageReference::Registry(repository, _)) => {
                settings.mirrors_of(&repository).iter().map(ToString::to_string).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        };
        let hub = ["m.example/hub/library/debian", "[::1]:5000/library/debian"];
        assert_eq!(of("docker://docker.io/library/debian:12"), hub);
        assert_eq!(of("docker://ghcr.io/a/b"), ["localhost/ghcr/a/b"]);
        assert!(of("docker://other.example/a/b").is_empty());
    }

    #[test]
    fn mirror_is_a_host_with_a_path() {
        for bad in ["https://m.example", "u@m.example", "hub", "hub/x", "m.example/UPPER?", "", "m.example/a b"] {
            assert!(bad.parse::<Mirror>().is_err(), "{bad}");
        }
    }
}
