//! Defines and validates the table `secret_providers` of the configuration.

use std::path::{Path, PathBuf};
use std::time::Duration;

use executor_core::reference::{check_provider_name, check_provider_role, covers};
use executor_http::Origin;
use serde::Deserialize;

use crate::{kubernetes_path, vault_path};

/// Minimum and maximum poll interval, in seconds.
const POLL: (u64, u64) = (1, 86_400);
/// Minimum and maximum time limit of a fetch, in seconds.
const TIMEOUT: (u64, u64) = (1, 120);
/// Default time limit of a fetch, in seconds.
const TIMEOUT_DEFAULT: u64 = 10;
/// Maximum number of providers.
pub(crate) const PROVIDERS_MAX: usize = 64;
/// Maximum number of rules of a provider, of paths of a rule, and of words of a command.
const LIST_MAX: usize = 1000;
/// Default mounts of the KV engine, version 2.
const KV_MOUNTS: [&str; 2] = ["secret", "kv"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ProviderKind {
    /// Files beneath a directory.
    Directory,
    Vault,
    /// Secrets of a Kubernetes cluster.
    Kubernetes,
    /// A program of the operator.
    Command,
}

impl ProviderKind {
    /// Returns the name that the configuration uses.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::Vault => "vault",
            Self::Kubernetes => "kubernetes",
            Self::Command => "command",
        }
    }

    /// Returns the default poll interval in seconds.
    fn poll(self) -> u64 {
        match self {
            Self::Directory => 10,
            Self::Vault | Self::Kubernetes => 60,
            Self::Command => 300,
        }
    }
}

/// Method of the login at Vault or a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Auth {
    /// Authentication with a token from a file.
    #[default]
    Token,
    AppRole,
    /// Authentication with a TLS client certificate.
    Cert,
    /// Authentication with a token of the workload, which the request contains.
    Jwt,
}

/// A rule that allows callers to refer to paths.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// User id that a caller must have, if set.
    pub uid: Option<u32>,
    /// Group that a caller must belong to, if set.
    pub gid: Option<u32>,
    /// URI that a caller's certificate must contain, if set.
    pub uri: Option<String>,
    /// DNS name that a caller's certificate must contain, if set.
    pub dns: Option<String>,
    /// Common name that a caller's certificate must have, if set.
    pub cn: Option<String>,
    /// Organizational unit that a caller's certificate must have, if set.
    pub ou: Option<String>,
    /// Paths that the rule allows. Each path includes everything below it, and `/` includes all paths.
    pub paths: Vec<String>,
}

impl Grant {
    /// Returns true if the rule applies to callers with a certificate.
    pub fn is_to_certificates(&self) -> bool {
        [&self.uri, &self.dns, &self.cn, &self.ou].iter().any(|name| name.is_some())
    }

    /// Returns the shortest path of the rule that covers `path`, if any.
    pub fn covering(&self, path: &str) -> Option<&str> {
        self.paths.iter().map(String::as_str).filter(|rule| covers(rule, path)).min_by_key(|rule| rule.len())
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderConfig {
    /// Name of the provider, which references use.
    pub name: String,
    #[serde(rename = "type")]
    kind: ProviderKind,
    /// Rules for callers. If empty, no caller may use the provider.
    #[serde(default)]
    pub allow: Vec<Grant>,
    poll_seconds: Option<u64>,
    timeout_seconds: Option<u64>,
    /// Directory of a `directory` provider.
    pub(crate) path: Option<PathBuf>,
    /// Program and arguments of a `command` provider.
    #[serde(default)]
    pub(crate) command: Vec<String>,
    /// Address of a `vault` or `kubernetes` provider.
    pub(crate) address: Option<String>,
    pub(crate) namespace: Option<String>,
    kv_mounts: Option<Vec<String>>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) auth: Option<Auth>,
    pub(crate) auth_mount: Option<String>,
    pub(crate) auth_role: Option<String>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) role_id_file: Option<PathBuf>,
    pub(crate) secret_id_file: Option<PathBuf>,
    pub(crate) certificate_file: Option<PathBuf>,
    pub(crate) key_file: Option<PathBuf>,
}

/// An invalid value in the table `secret_providers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    pub key: &'static str,
    pub value: String,
    pub why: String,
}

fn unusable(key: &'static str, value: &dyn std::fmt::Display, why: impl Into<String>) -> Unusable {
    Unusable { key, value: value.to_string(), why: why.into() }
}

impl ProviderConfig {
    /// Validates a list of providers.
    ///
    /// # Errors
    /// Returns the first invalid value if there is one.
    pub fn check_all(all: &[Self]) -> Result<(), Unusable> {
        if all.len() > PROVIDERS_MAX {
            return Err(unusable("secret_providers", &all.len(), format!("must have at most {PROVIDERS_MAX} entries")));
        }
        for (index, one) in all.iter().enumerate() {
            if all[..index].iter().any(|other| other.name == one.name) {
                return Err(unusable("secret_providers.name", &one.name, "is used by two providers"));
            }
            one.check()?;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Unusable> {
        check_provider_name(&self.name)
            .map_err(|fault| unusable("secret_providers.name", &self.name, fault.to_string()))?;
        within("secret_providers.poll_seconds", self.poll_seconds, POLL)?;
        within("secret_providers.timeout_seconds", self.timeout_seconds, TIMEOUT)?;
        for grant in &self.allow {
            if (grant.uid.is_some() || grant.gid.is_some()) == grant.is_to_certificates() {
                let why =
                    "a rule must name its callers either by uid or gid, or by uri, dns, cn or ou of a certificate";
                return Err(unusable("secret_providers.allow", &grant.paths.join(", "), why));
            }
            if let Some(bad) = grant.paths.iter().find(|path| !is_rule(path)) {
                let why = "must be a path such as kv/app/, without a leading `/`, or / for every path";
                return Err(unusable("secret_providers.allow.paths", &bad, why));
            }
        }
        if self.allow.len() > LIST_MAX || self.allow.iter().any(|grant| grant.paths.len() > LIST_MAX) {
            let why = format!("must have at most {LIST_MAX} entries");
            return Err(unusable("secret_providers.allow", &self.allow.len(), why));
        }
        self.check_keys()?;
        if let Some(Err(fault)) = self.auth_role.as_deref().map(check_provider_role) {
            return Err(unusable("secret_providers.auth_role", &self.name, fault.to_string()));
        }
        self.check_vault_paths()
    }

    /// Checks that no path refers to a system mount of Vault.
    fn check_vault_paths(&self) -> Result<(), Unusable> {
        if self.kind != ProviderKind::Vault {
            return Ok(());
        }
        let refused = |key: &'static str, path: &String, mounts: &[String]| match vault_path::refusal(mounts, path) {
            Some(why) => Err(unusable(key, path, why)),
            None => Ok(()),
        };
        for name in self.namespace.iter().chain(self.kv_mounts.iter().flatten()) {
            let is_namespace = self.namespace.as_ref() == Some(name);
            refused(if is_namespace { "secret_providers.namespace" } else { "secret_providers.kv_mounts" }, name, &[])?;
        }
        let mounts = self.kv_mounts();
        self.allow
            .iter()
            .flat_map(|grant| &grant.paths)
            .try_for_each(|rule| refused("secret_providers.allow.paths", rule, &mounts))
    }

    /// Checks that all keys which the type requires are set, and that no key of another type is set.
    fn check_keys(&self) -> Result<(), Unusable> {
        use ProviderKind::{Command, Directory, Kubernetes, Vault};
        let auth = self.auth.unwrap_or_default();
        let is = |kind: ProviderKind| self.kind == kind;
        let by = |wanted: Auth| is(Vault) && auth == wanted;
        let is_server = is(Vault) || is(Kubernetes);
        let by_either = |wanted: Auth| is_server && auth == wanted;
        // Name of the key, then three flags: present, allowed, required.
        let keys = [
            ("secret_providers.path", self.path.is_some(), is(Directory), is(Directory)),
            ("secret_providers.command", !self.command.is_empty(), is(Command), is(Command)),
            ("secret_providers.address", self.address.is_some(), is_server, is_server),
            ("secret_providers.namespace", self.namespace.is_some(), is(Vault), false),
            ("secret_providers.kv_mounts", self.kv_mounts.is_some(), is(Vault), false),
            ("secret_providers.ca_file", self.ca_file.is_some(), is_server, false),
            (
                "secret_providers.auth",
                self.auth.is_some(),
                is(Vault) || (is(Kubernetes) && auth != Auth::AppRole),
                false,
            ),
            (
                "secret_providers.auth_mount",
                self.auth_mount.is_some(),
                by(Auth::AppRole) || by(Auth::Cert) || by(Auth::Jwt),
                false,
            ),
            ("secret_providers.auth_role", self.auth_role.is_some(), by(Auth::Cert) || by(Auth::Jwt), false),
            ("secret_providers.token_file", self.token_file.is_some(), by_either(Auth::Token), by_either(Auth::Token)),
            ("secret_providers.role_id_file", self.role_id_file.is_some(), by(Auth::AppRole), by(Auth::AppRole)),
            ("secret_providers.secret_id_file", self.secret_id_file.is_some(), by(Auth::AppRole), false),
            (
                "secret_providers.certificate_file",
                self.certificate_file.is_some(),
                is(Vault) || by_either(Auth::Cert),
                by_either(Auth::Cert),
            ),
            (
                "secret_providers.key_file",
                self.key_file.is_some(),
                is(Vault) || by_either(Auth::Cert),
                by_either(Auth::Cert),
            ),
        ];
        for (key, present, allowed, required) in keys {
            let kind = self.kind.name();
            if present && !allowed {
                return Err(unusable(key, &self.name, format!("cannot be used with type = {kind:?} and this auth")));
            }
            if required && !present {
                return Err(unusable(key, &self.name, format!("is required with type = {kind:?} and this auth")));
            }
        }
        let paths = [
            ("secret_providers.path", &self.path),
            ("secret_providers.ca_file", &self.ca_file),
            ("secret_providers.token_file", &self.token_file),
            ("secret_providers.role_id_file", &self.role_id_file),
            ("secret_providers.secret_id_file", &self.secret_id_file),
            ("secret_providers.certificate_file", &self.certificate_file),
            ("secret_providers.key_file", &self.key_file),
        ];
        for (key, path) in paths {
            if let Some(path) = path.as_ref().filter(|path| !path.is_absolute()) {
                return Err(unusable(key, &path.display(), "must be an absolute path"));
            }
        }
        if self.certificate_file.is_some() != self.key_file.is_some() {
            return Err(unusable(
                "secret_providers.key_file",
                &self.name,
                "certificate_file and key_file must be set together",
            ));
        }
        if let Some(program) = self.command.first().filter(|program| !Path::new(program).is_absolute()) {
            return Err(unusable("secret_providers.command", &program, "must begin with an absolute path"));
        }
        if self.command.len() > LIST_MAX || self.command.iter().any(|word| word.contains('\0')) {
            return Err(unusable(
                "secret_providers.command",
                &self.command.len(),
                format!("must have at most {LIST_MAX} words, without NUL"),
            ));
        }
        if let Some(address) = &self.address
            && self.origin().is_none()
        {
            let why = "must be https://HOST[:PORT], or http://HOST[:PORT] of this machine's loopback";
            return Err(unusable("secret_providers.address", &address, why));
        }
        let names = [
            ("secret_providers.namespace", self.namespace.as_slice()),
            ("secret_providers.auth_mount", self.auth_mount.as_slice()),
            ("secret_providers.kv_mounts", self.kv_mounts.as_deref().unwrap_or_default()),
        ];
        for (key, names) in names {
            let bad = names.iter().find(|name| executor_core::reference::check_reference_path(name).is_err());
            if let Some(bad) = bad {
                return Err(unusable(key, &bad, "must be a path without a leading or trailing `/`"));
            }
        }
        Ok(())
    }

    pub(crate) fn kind(&self) -> ProviderKind {
        self.kind
    }

    /// Returns the mounts of the KV engine, version 2.
    pub(crate) fn kv_mounts(&self) -> Vec<String> {
        self.kv_mounts.clone().unwrap_or_else(|| KV_MOUNTS.map(str::to_owned).to_vec())
    }

    /// Returns the files that contain executord's own credentials for the provider.
    pub(crate) fn credentials(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.token_file, &self.role_id_file, &self.secret_id_file, &self.key_file].into_iter().flatten()
    }

    /// Returns the server of a `vault` or `kubernetes` provider. Plain text is allowed only if the server is on this
    /// machine.
    pub(crate) fn origin(&self) -> Option<Origin> {
        let address = self.address.as_deref()?;
        let (origin, path) = Origin::parse(address, &Origin::new("", true)).filter(|_| address.contains("://"))?;
        let is_local = ["127.0.0.1", "::1", "localhost"].contains(&&*origin.host);
        (path == "/" && !origin.host.is_empty() && (origin.secure || is_local)).then_some(origin)
    }

    /// Returns true if the provider authenticates the workload, by a token in the request (`auth = "jwt"`).
    pub fn uses_workload_token(&self) -> bool {
        self.auth == Some(Auth::Jwt)
    }

    pub fn poll(&self) -> Duration {
        Duration::from_secs(self.poll_seconds.unwrap_or(self.kind.poll()))
    }

    /// Returns the time limit of a fetch.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds.unwrap_or(TIMEOUT_DEFAULT))
    }

    /// Checks that a reference has the fields that this type of provider requires, and no other fields. Returns the
    /// field and the reason if a field is missing, invalid or not supported.
    pub fn check_reference(
        &self,
        reference: &executor_core::reference::SecretReference,
    ) -> Option<(&'static str, String)> {
        if self.kind == ProviderKind::Vault
            && let Some(why) = vault_path::refusal(&self.kv_mounts(), &reference.path)
        {
            return Some(("path", why));
        }
        let invalid = match self.kind {
            ProviderKind::Directory if !reference.key.is_empty() => Some(("key", "must be empty: a file has no keys")),
            ProviderKind::Directory if !reference.version.is_empty() => {
                Some(("version", "must be empty: a file has no versions"))
            }
            ProviderKind::Kubernetes if kubernetes_path::place(&reference.path).is_none() => {
                Some(("path", "must be NAMESPACE/NAME of a Secret"))
            }
            ProviderKind::Kubernetes if reference.key.is_empty() => {
                Some(("key", "is empty: name an entry of the Secret"))
            }
            ProviderKind::Kubernetes if !reference.version.is_empty() => {
                Some(("version", "must be empty: Kubernetes keeps no earlier versions"))
            }
            ProviderKind::Vault if reference.key.is_empty() => Some(("key", "is empty: name an entry of the secret")),
            ProviderKind::Vault if !reference.version.bytes().all(|b| b.is_ascii_digit()) => {
                Some(("version", "must be a number"))
            }
            _ => None,
        };
        invalid.map(|(part, why)| (part, why.to_owned()))
    }
}

/// Returns true if a string is valid as the path of a rule.
fn is_rule(path: &str) -> bool {
    let bare = path.strip_suffix('/').unwrap_or(path);
    path == "/" || executor_core::reference::check_reference_path(bare).is_ok()
}

fn within(key: &'static str, value: Option<u64>, (least, most): (u64, u64)) -> Result<(), Unusable> {
    match value {
        Some(value) if !(least..=most).contains(&value) => {
            Err(unusable(key, &value, format!("must be {least} to {most}")))
        }
        _ => Ok(()),
    }
}
