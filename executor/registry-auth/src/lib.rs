//! Registry credentials in the format of Docker's configuration file.
//!
//! Input: the content of a `config.json` (or of the `auth.json` that Podman and Skopeo write); output: the credentials
//! for one repository. The crate is used by executord for the file that the operator configured, and by agent-cli for
//! the caller's own file. If the file names a credential helper (`credHelpers`, `credsStore`), that program runs with
//! the privileges of the process that reads the file. This crate never prints a value.

#![forbid(unsafe_code)]

mod helper;

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use serde::{Deserialize, Deserializer};
use zeroize::Zeroizing;

/// Maximum size of a file, in bytes.
pub const FILE_MAX: usize = 1 << 20;
/// Maximum length of a user name, password or token, in bytes.
pub const VALUE_MAX: usize = 64 << 10;
/// Docker Hub's names in the configuration file.
const DOCKER_HUB: [&str; 4] = ["docker.io", "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"];

/// Text that is overwritten on drop.
pub type Secret = Zeroizing<String>;

/// Credentials for a registry.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// User name and password.
    Basic { username: String, password: Secret },
    /// A refresh token (OAuth 2), which the registry's token service accepts instead of a password.
    IdentityToken(Secret),
    /// A bearer token for the registry itself.
    RegistryToken(Secret),
}

/// Error from reading credentials from a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthFileError {
    #[error("is {0} bytes; the maximum is {FILE_MAX}")]
    Size(usize),
    /// The file is not a Docker configuration file. The parser's message could repeat a value, so only the position is
    /// given.
    #[error("is not a Docker configuration file (line {line}, column {column})")]
    Form {
        /// Line number, starting at 1.
        line: usize,
        /// Column number, starting at 1.
        column: usize,
    },
    /// The entry for the registry cannot be decoded.
    #[error("auths[{0:?}].auth is not `user:password` in base64")]
    Encoding(String),
    /// A value is not a valid credential.
    #[error("auths[{0:?}] has an empty user name, or a value of more than {VALUE_MAX} bytes")]
    Value(String),
    /// The credential helper failed.
    #[error("the credential helper docker-credential-{helper} returned no credentials for {registry}: {why}")]
    Helper {
        registry: String,
        /// Name of the program after `docker-credential-`.
        helper: String,
        why: String,
    },
}

impl Credentials {
    /// Creates credentials from a user name and password, after validation.
    ///
    /// # Errors
    /// Returns the reason if a value is invalid; the reason contains neither value.
    pub fn basic(username: impl Into<String>, password: Secret) -> Result<Self, &'static str> {
        let username = username.into();
        match () {
            () if username.is_empty() => Err("the user name is empty"),
            () if username.contains([':', '\0', '\n', '\r']) => {
                Err("the user name contains a colon or a control character")
            }
            () if username.len() > VALUE_MAX || password.len() > VALUE_MAX => {
                Err("the user name or the password is longer than 65536 bytes")
            }
            () => Ok(Self::Basic { username, password }),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Basic { .. } => "Basic([REDACTED])",
            Self::IdentityToken(_) => "IdentityToken([REDACTED])",
            Self::RegistryToken(_) => "RegistryToken([REDACTED])",
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct File {
    auths: BTreeMap<String, Entry>,
    #[serde(rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
    #[serde(rename = "credsStore")]
    store: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    #[serde(deserialize_with = "secret")]
    auth: Secret,
    username: String,
    #[serde(deserialize_with = "secret")]
    password: Secret,
    #[serde(deserialize_with = "secret", rename = "identitytoken")]
    identity_token: Secret,
    #[serde(deserialize_with = "secret", rename = "registrytoken")]
    registry_token: Secret,
}

fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
    String::deserialize(deserializer).map(Zeroizing::new)
}

/// Returns the credentials for a repository: from the helper that the file names for the registry, from the longest
/// entry that covers the repository, or from the file's credential store. `None` if none of them has credentials.
/// Blocks while a helper runs, for at most 30 s.
///
/// # Errors
/// Returns an [`AuthFileError`] if the file is invalid.
pub fn from_docker_config(
    content: &[u8],
    registry: &str,
    repository: &str,
) -> Result<Option<Credentials>, AuthFileError> {
    match find(content, registry, repository)? {
        Found::Credentials(credentials) => Ok(Some(credentials)),
        Found::None => Ok(None),
        Found::Helper(helper) => helper::credentials(&helper, registry).map_err(|why| AuthFileError::Helper {
            registry: registry.to_owned(),
            helper,
            why,
        }),
    }
}

/// Result of a lookup in the file.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    None,
    Credentials(Credentials),
    /// A helper with this name has the credentials.
    Helper(String),
}

fn find(content: &[u8], registry: &str, repository: &str) -> Result<Found, AuthFileError> {
    if content.len() > FILE_MAX {
        return Err(AuthFileError::Size(content.len()));
    }
    let file: File = serde_json::from_slice(content)
        .map_err(|error| AuthFileError::Form { line: error.line(), column: error.column() })?;
    if let Some((_, helper)) = file.helpers.iter().find(|(name, _)| covers(name, registry, "") > 0) {
        return Ok(Found::Helper(helper.clone()));
    }
    let entries = file.auths.iter().map(|(name, entry)| (covers(name, registry, repository), name, entry));
    let longest = entries.filter(|(length, ..)| *length > 0).max_by_key(|(length, ..)| *length);
    let credentials = longest.map(|(_, name, entry)| entry_credentials(name, entry)).transpose()?.flatten();
    Ok(match credentials {
        Some(credentials) => Found::Credentials(credentials),
        None if !file.store.is_empty() => Found::Helper(file.store),
        None => Found::None,
    })
}

/// Returns true if a server, given as a host or as a URL, is this registry. Docker Hub has several names.
pub fn is_registry(server: &str, registry: &str) -> bool {
    let bare = server.split_once("://").map_or(server, |(_, rest)| rest);
    is_same(bare.split('/').next().unwrap_or(bare), registry)
}

fn is_same(host: &str, registry: &str) -> bool {
    let is_hub = |host: &str| DOCKER_HUB.iter().any(|name| name.eq_ignore_ascii_case(host));
    host.eq_ignore_ascii_case(registry) || (is_hub(host) && is_hub(registry))
}

/// Returns the rank of an entry for a repository: 1 plus the length of the entry's path, or 0 if the entry is for other
/// repositories.
fn covers(name: &str, registry: &str, repository: &str) -> usize {
    let bare = name.strip_prefix("https://").or_else(|| name.strip_prefix("http://"));
    // Docker Hub's entries are URLs with a meaningless path; in other entries the path is a namespace.
    let (host, path) = match (bare, name.split_once('/')) {
        (Some(bare), _) => (bare.split('/').next().unwrap_or(bare), ""),
        (None, Some((host, path))) => (host, path.trim_end_matches('/')),
        (None, None) => (name, ""),
    };
    let same = is_same(host, registry);
    let below = match repository.strip_prefix(path) {
        Some(rest) => path.is_empty() || rest.is_empty() || rest.starts_with('/'),
        None => false,
    };
    if same && below { 1 + path.len() } else { 0 }
}

fn entry_credentials(name: &str, entry: &Entry) -> Result<Option<Credentials>, AuthFileError> {
    let too_long = [&entry.auth, &entry.password, &entry.identity_token, &entry.registry_token];
    if too_long.iter().any(|value| value.len() > VALUE_MAX) {
        return Err(AuthFileError::Value(name.to_owned()));
    }
    if !entry.identity_token.is_empty() {
        return Ok(Some(Credentials::IdentityToken(entry.identity_token.clone())));
    }
    if !entry.registry_token.is_empty() {
        return Ok(Some(Credentials::RegistryToken(entry.registry_token.clone())));
    }
    let (username, password) = if entry.auth.is_empty() {
        (entry.username.clone(), entry.password.clone())
    } else {
        decode(&entry.auth).ok_or_else(|| AuthFileError::Encoding(name.to_owned()))?
    };
    if username.is_empty() && password.is_empty() {
        return Ok(None);
    }
    Credentials::basic(username, password).map(Some).map_err(|_| AuthFileError::Value(name.to_owned()))
}

/// Decodes `user:password` in base64; `None` if the text is something else.
pub fn decode(auth: &str) -> Option<(String, Secret)> {
    let bytes = STANDARD.decode(auth).or_else(|_| STANDARD_NO_PAD.decode(auth)).ok()?;
    let text = match String::from_utf8(bytes) {
        Ok(text) => Zeroizing::new(text),
        Err(error) => {
            drop(Zeroizing::new(error.into_bytes()));
            return None;
        }
    };
    let (username, password) = text.split_once(':')?;
    // Older versions of Docker pad the password with NULs.
    Some((username.to_owned(), Zeroizing::new(password.trim_end_matches('\0').to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{
        "auths": {
            "https://index.docker.io/v1/": {"auth": "aHViOmh1YnB3"},
            "r.example:5000": {"auth": "dTpwOndpdGg6Y29sb25z"},
            "r.example:5000/team/app": {"username": "app", "password": "apppw"},
            "token.example": {"auth": "", "identitytoken": "refresh"},
            "stored.example": {},
            "bad.example": {"auth": "%%%"}
        },
        "credHelpers": {"helped.example": "pass"},
        "credsStore": "desktop",
        "HttpHeaders": {"x": "y"}
    }"#;

    fn find_in_file(registry: &str, repository: &str) -> Result<Found, AuthFileError> {
        find(FILE.as_bytes(), registry, repository)
    }

    fn basic(username: &str, password: &str) -> Found {
        Found::Credentials(Credentials::basic(username, Zeroizing::new(password.to_owned())).unwrap())
    }

    #[test]
    fn longest_covering_entry_is_used() {
        assert_eq!(find_in_file("docker.io", "library/debian"), Ok(basic("hub", "hubpw")));
        assert_eq!(find_in_file("r.example:5000", "x"), Ok(basic("u", "p:with:colons")));
        assert_eq!(find_in_file("r.example:5000", "team/app"), Ok(basic("app", "apppw")));
        assert_eq!(find_in_file("r.example:5000", "team/app/sub"), Ok(basic("app", "apppw")));
        assert_eq!(find_in_file("r.example:5000", "team/apple"), Ok(basic("u", "p:with:colons")));
        let store = Found::Helper("desktop".into());
        assert_eq!(find_in_file("r.example", "x"), Ok(store), "another port is another registry");
        let token = Credentials::IdentityToken(Zeroizing::new("refresh".into()));
        assert_eq!(find_in_file("token.example", "x"), Ok(Found::Credentials(token)));
    }

    #[test]
    fn helper_is_used_without_stored_credentials() {
        for (registry, helper) in [("helped.example", "pass"), ("stored.example", "desktop")] {
            assert_eq!(find_in_file(registry, "x"), Ok(Found::Helper(helper.into())), "{registry}");
        }
        let reported = from_docker_config(FILE.as_bytes(), "helped.example", "x").unwrap_err().to_string();
        assert!(reported.contains("docker-credential-pass") && reported.contains("PATH"), "{reported}");
        assert_eq!(find(br#"{"auths": {"r.example": {}}}"#, "r.example", "x"), Ok(Found::None));
    }

    #[test]
    fn credentials_are_hidden_in_messages() {
        const CANARY: &str = "canary-77c1";
        let reported = format!("{:?} {:?}", basic("u", CANARY), Credentials::RegistryToken(CANARY.to_owned().into()));
        assert!(reported.contains("[REDACTED]") && !reported.contains(CANARY), "{reported}");
        let files = [
            format!(r#"{{"auths": {{"r": {{"password": 1{CANARY}}}}}}}"#),
            format!(r#"{{"auths": {{"r": {{"auth": "{CANARY}"}}}}}}"#),
            format!(r#"{{"auths": {{"r": {{"password": ["{CANARY}"]}}}}}}"#),
        ];
        for file in files {
            let error = from_docker_config(file.as_bytes(), "r", "x").unwrap_err();
            let reported = format!("{error} {error:?}");
            assert!(!reported.contains(CANARY), "{reported}");
        }
        assert!(matches!(find_in_file("bad.example", "x"), Err(AuthFileError::Encoding(_))));
        let huge = vec![b' '; FILE_MAX + 1];
        assert_eq!(from_docker_config(&huge, "r", "x"), Err(AuthFileError::Size(FILE_MAX + 1)));
    }
}
