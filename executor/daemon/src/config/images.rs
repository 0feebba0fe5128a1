//! The table `images`: sources, signatures and the budget.

use std::path::PathBuf;
use std::time::Duration;

use executor_core::image::{ImagePolicy, ImageRules, RepositoryPattern, repository_patterns};
use executor_core::settings::Bytes;
use executor_images::Settings;
use executor_images::signatures::{KEYS_MAX, RULES_MAX, SignaturePolicy, SignatureRule, TrustedKey};
use serde::Deserialize;

use super::{Check, ConfigError};
use crate::paths::Paths;

/// Most entries of insecure_registries.
const REGISTRIES_MAX: usize = 1000;
/// Longest patience, in seconds.
const PATIENCE_MAX: u64 = 3600;

/// The table as the file has it. [`Settings::new`] has the defaults.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Images {
    insecure_registries: Option<Vec<String>>,
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

/// Rule for images that must be signed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signed {
    images: Vec<String>,
    keys: Vec<PathBuf>,
    #[serde(default)]
    identity: Identity,
}

/// Identity that a signature must name.
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
    /// Returns the policy for images.
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
        for (key, path) in [("images.ca_file", &self.ca_file), ("images.docker_config", &self.docker_config)] {
            path.as_ref().map_or(Ok(()), |path| check.absolute(key, path))?;
        }
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

/// Makes the rules for signatures, and reads their keys. All errors are reported at once.
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
