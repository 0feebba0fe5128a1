//! Reads the table `images`: sources, signatures and the disk budget.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use executor_core::image::{ImagePolicy, ImageReference, ImageRules, RepositoryPattern, repository_patterns};
use executor_core::settings::Bytes;
use executor_images::signatures::{KEYS_MAX, RULES_MAX, SignaturePolicy, SignatureRule, TrustedKey};
use executor_images::{Mirror, Mirrors, Proxy, Settings};
use serde::Deserialize;

use super::{Check, ConfigError};
use crate::paths::Paths;

/// Maximum number of entries of insecure_registries.
const REGISTRIES_MAX: usize = 1000;
/// Maximum number of mirrors of one registry.
const MIRRORS_MAX: usize = 16;
/// Maximum value of `patience_seconds`, in seconds.
const PATIENCE_MAX: u64 = 3600;

/// The table `images` of the file. [`Settings::new`] has the defaults.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Images {
    insecure_registries: Option<Vec<String>>,
    mirrors: Vec<MirrorRule>,
    proxy: Option<String>,
    proxy_credentials_file: Option<PathBuf>,
    no_proxy: Vec<String>,
    ca_file: Option<PathBuf>,
    docker_config: Option<PathBuf>,
    image_bytes_max: Option<Bytes>,
    bytes_budget: Option<Bytes>,
    patience_seconds: Option<u64>,
    bytes_least: Option<Bytes>,
    allow: Option<Vec<String>>,
    allow_import: Option<bool>,
    allow_archives: Option<bool>,
    signed: Vec<Signed>,
}

/// Mirrors that are tried before a registry.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MirrorRule {
    registry: String,
    mirrors: Vec<String>,
}

/// Rule for images that must be signed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signed {
    images: Vec<String>,
    keys: Vec<PathBuf>,
    #[serde(default)]
    identity: Identity,
}

/// Identity that a signature must contain.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Identity {
    /// The image's digest.
    #[default]
    Any,
    /// The digest, and the repository that the image is fetched from.
    Repository,
}

impl Images {
    pub(super) fn policy(&self, check: &Check, private: bool) -> Result<ImagePolicy, ConfigError> {
        let Self { allow, allow_import, allow_archives, .. } = self;
        let rules = ImageRules { allow: allow.clone(), allow_import: *allow_import, allow_archives: *allow_archives };
        ImagePolicy::new(&rules, private).map_err(|bad| {
            check.fault(
                "images.allow",
                &allow.iter().flatten().cloned().collect::<Vec<_>>().join(", "),
                &bad.to_string(),
            )
        })
    }

    pub(super) fn resolve(self, check: &Check, paths: &Paths, policy: ImagePolicy) -> Result<Settings, ConfigError> {
        let signatures = signatures(&self.signed, check)?;
        let mut settings = Settings { policy, signatures, ..Settings::new(paths.images()) };
        if let Some(registries) = self.insecure_registries {
            let is_one = |name: &String| !name.is_empty() && name.len() <= 255 && !name.contains(['/', '@', ' ']);
            if let Some(bad) = registries.iter().find(|name| !is_one(name)) {
                return Err(check.fault("images.insecure_registries", bad, "must be a host with an optional port"));
            }
            if registries.len() > REGISTRIES_MAX {
                let why = format!("must have at most {REGISTRIES_MAX} entries");
                return Err(check.fault("images.insecure_registries", &registries.len(), &why));
            }
            settings.insecure_registries = registries.into_iter().map(|name| name.to_ascii_lowercase()).collect();
        }
        for (key, path) in [
            ("images.ca_file", &self.ca_file),
            ("images.docker_config", &self.docker_config),
            ("images.proxy_credentials_file", &self.proxy_credentials_file),
        ] {
            path.as_ref().map_or(Ok(()), |path| check.absolute(key, path))?;
        }
        settings.mirrors = mirrors(&self.mirrors, check)?;
        settings.proxy = proxy(self.proxy, self.proxy_credentials_file, &self.no_proxy, check)?;
        (settings.ca_file, settings.docker_config) = (self.ca_file, self.docker_config);
        if let Some(Bytes(bytes)) = self.image_bytes_max {
            check.at_least_one("images.image_bytes_max", bytes)?;
            settings.image_bytes_max = bytes;
        }
        settings.bytes_budget = self.bytes_budget.map_or(settings.bytes_budget, |bytes| bytes.0);
        if let Some(seconds) = self.patience_seconds {
            if !(1..=PATIENCE_MAX).contains(&seconds) {
                let why = format!("must be 1 to {PATIENCE_MAX}");
                return Err(check.fault("images.patience_seconds", &seconds, &why));
            }
            settings.patience = Duration::from_secs(seconds);
        }
        if let Some(Bytes(bytes)) = self.bytes_least {
            check.at_least_one("images.bytes_least", bytes)?;
            settings.bytes_least = bytes;
        }
        Ok(settings)
    }
}

/// Resolves the mirror lists. All errors are reported together.
fn mirrors(rules: &[MirrorRule], check: &Check) -> Result<Vec<Mirrors>, ConfigError> {
    let mut faults = Vec::new();
    if rules.len() > REGISTRIES_MAX {
        faults.push(format!("has {} entries; at most {REGISTRIES_MAX} are allowed", rules.len()));
    }
    let mut lists: Vec<Mirrors> = Vec::new();
    for (index, MirrorRule { registry, mirrors }) in rules.iter().enumerate().take(REGISTRIES_MAX) {
        let mut fault = |why: String| faults.push(format!("entry {}: {why}", index + 1));
        let registry = registry.to_ascii_lowercase();
        match format!("docker://{registry}/repository").parse() {
            Ok(ImageReference::Registry(repository, _)) if repository.registry() == registry => {}
            _ => fault(format!("registry {registry:?} must be HOST[:PORT], where HOST has a dot or a port")),
        }
        if lists.iter().any(|other| other.registry == registry) {
            fault(format!("registry {registry:?} has an entry already"));
        }
        if mirrors.is_empty() || mirrors.len() > MIRRORS_MAX {
            fault(format!("has {} mirrors; 1 to {MIRRORS_MAX} are allowed", mirrors.len()));
        }
        let mut parsed = Vec::new();
        for text in mirrors.iter().take(MIRRORS_MAX) {
            match text.parse::<Mirror>() {
                Ok(mirror) => parsed.push(mirror),
                Err(why) => fault(format!("mirror {text:?} {why}")),
            }
        }
        lists.push(Mirrors { registry, mirrors: parsed });
    }
    if faults.is_empty() {
        return Ok(lists);
    }
    let shown: Vec<&str> = rules.iter().map(|rule| &*rule.registry).collect();
    Err(check.fault("images.mirrors", &shown.join(", "), &faults.join("; ")))
}

/// Resolves the registry proxy. Errors do not repeat an address that may contain a password.
fn proxy(
    address: Option<String>,
    credentials_file: Option<PathBuf>,
    direct: &[String],
    check: &Check,
) -> Result<Option<Proxy>, ConfigError> {
    let Some(address) = address else {
        let unused = credentials_file.is_some() || !direct.is_empty();
        let fault = || check.fault("images.proxy", &"", "is required if proxy_credentials_file or no_proxy is set");
        return if unused { Err(fault()) } else { Ok(None) };
    };
    let is_one =
        |name: &String| !name.is_empty() && name.len() <= 255 && !name.contains([',', ' ', '/']) || is_network(name);
    if let Some(bad) = direct.iter().find(|name| !is_one(name)) {
        return Err(check.fault(
            "images.no_proxy",
            bad,
            "must be a host name, an address, a network (ADDRESS/BITS) or *",
        ));
    }
    if direct.len() > REGISTRIES_MAX {
        return Err(check.fault(
            "images.no_proxy",
            &direct.len(),
            &format!("must have at most {REGISTRIES_MAX} entries"),
        ));
    }
    let shown = if address.contains('@') { "(not shown)" } else { &address };
    Proxy::new(&address, credentials_file, direct).map(Some).map_err(|why| check.fault("images.proxy", &shown, why))
}

fn is_network(text: &str) -> bool {
    text.split_once('/').is_some_and(|(address, bits)| {
        let bits_max = address.parse().ok().map(|address: IpAddr| if address.is_ipv4() { 32 } else { 128 });
        bits_max.is_some_and(|most| bits.parse::<u8>().is_ok_and(|bits| bits <= most))
    })
}

/// Resolves the signature rules, and reads their keys. All errors are reported together.
fn signatures(signed: &[Signed], check: &Check) -> Result<SignaturePolicy, ConfigError> {
    let mut faults = Vec::new();
    if signed.len() > RULES_MAX {
        faults.push(format!("has {} entries; at most {RULES_MAX} are allowed", signed.len()));
    }
    let mut rules = Vec::new();
    for (index, Signed { images, keys, identity }) in signed.iter().enumerate().take(RULES_MAX) {
        let mut fault = |why: String| faults.push(format!("entry {}: {why}", index + 1));
        if images.is_empty() || keys.is_empty() {
            fault("needs at least one pattern in images and one file in keys".into());
        }
        if keys.len() > KEYS_MAX {
            fault(format!("has {} files in keys; at most {KEYS_MAX} are allowed", keys.len()));
        }
        let images: Vec<RepositoryPattern> = repository_patterns(images).unwrap_or_else(|bad| {
            fault(bad.to_string());
            Vec::new()
        });
        let mut read = Vec::new();
        for path in keys.iter().take(KEYS_MAX) {
            match if path.is_absolute() { TrustedKey::read(path) } else { Err("must be an absolute path".into()) } {
                Ok(keys) => read.extend(keys),
                Err(why) => fault(format!("{} {why}", path.display())),
            }
        }
        rules.push(SignatureRule { images, keys: read, repository: *identity == Identity::Repository });
    }
    if faults.is_empty() {
        return Ok(SignaturePolicy(rules));
    }
    let shown: Vec<String> = signed.iter().flat_map(|rule| &rule.images).cloned().collect();
    Err(check.fault("images.signed", &shown.join(", "), &faults.join("; ")))
}
