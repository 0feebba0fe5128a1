//! Checks references to secrets, which a request contains instead of values, and matches their paths with the
//! operator's rules.
//!
//! A reference has a provider, a path, a key and a version. None of these is secret. Each part has a length limit and
//! one canonical form, so that two spellings never name the same secret.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::text::is_harmful;
use crate::violation::FieldFault;
use crate::violation::ViolationReason::{InvalidCharacter, InvalidFormat, Required, TooLong};

/// Maximum length of the name of a provider, in bytes.
pub const PROVIDER_MAX: usize = 64;
/// Maximum length of a path, in bytes.
pub const REFERENCE_PATH_MAX: usize = 1024;
/// Maximum length of a key, in bytes.
pub const REFERENCE_KEY_MAX: usize = 256;
/// Maximum length of a version, in bytes.
pub const REFERENCE_VERSION_MAX: usize = 64;
/// Maximum number of references in a container.
pub const REFERENCES_MAX: usize = 256;
/// Maximum size of a value of a reference, in bytes.
pub const REFERENCE_VALUE_MAX: usize = 1 << 20;

/// Maximum length of a workload's token, in bytes.
pub const PROVIDER_TOKEN_MAX: usize = 16 * 1024;
/// Maximum length of a login's role, in bytes.
pub const PROVIDER_ROLE_MAX: usize = 256;
/// Maximum number of tokens in a request.
pub const PROVIDER_TOKENS_MAX: usize = 64;

/// A secret at a provider.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SecretReference {
    /// Name of the provider.
    pub provider: String,
    /// Path of the secret at the provider.
    pub path: String,
    /// Key of an entry in the secret; empty for the whole secret.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Version of the secret; empty for the newest.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
}

impl SecretReference {
    /// Returns all violations, each with the name of its field.
    pub fn faults(&self) -> Vec<(&'static str, FieldFault)> {
        let all = [
            ("provider", check_provider_name(&self.provider)),
            ("path", check_reference_path(&self.path)),
            ("key", check_text(&self.key, REFERENCE_KEY_MAX)),
            ("version", check_version(&self.version)),
        ];
        all.into_iter().filter_map(|(field, checked)| Some((field, checked.err()?))).collect()
    }
}

impl fmt::Display for SecretReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { provider, path, key, version } = self;
        write!(f, "{provider}:{path}")?;
        if !key.is_empty() {
            write!(f, "#{key}")?;
        }
        if !version.is_empty() {
            write!(f, "@{version}")?;
        }
        Ok(())
    }
}

/// Checks the name of a provider.
///
/// # Errors
/// Returns an error if the name is empty, too long, or has another format.
pub fn check_provider_name(name: &str) -> Result<(), FieldFault> {
    let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    match name.as_bytes() {
        [] => Err(Required.because("is empty")),
        all if all.len() > PROVIDER_MAX => {
            Err(TooLong.because(format!("is {} bytes; the maximum is {PROVIDER_MAX}", all.len())))
        }
        [first, rest @ ..]
            if is_word(*first) && rest.iter().all(|b| is_word(*b) || matches!(b, b'.' | b'_' | b'-')) =>
        {
            Ok(())
        }
        _ => Err(InvalidFormat.because("may only contain `[a-z0-9._-]`, and must begin with a letter or a digit")),
    }
}

/// Checks the path of a reference.
///
/// # Errors
/// Returns an error if the path is empty or too long, contains a control character, or has a component that is empty,
/// `.` or `..`.
pub fn check_reference_path(path: &str) -> Result<(), FieldFault> {
    if path.is_empty() {
        return Err(Required.because("is empty"));
    }
    check_text(path, REFERENCE_PATH_MAX)?;
    match path.split('/').find(|part| matches!(*part, "" | "." | "..")) {
        None => Ok(()),
        Some("") => Err(InvalidFormat.because("has an empty component (`//`, or a `/` at its beginning or end)")),
        Some(part) => Err(InvalidFormat.because(format!("contains `{part}`"))),
    }
}

/// Checks a token with which a workload logs in at a provider.
///
/// # Errors
/// Returns an error if the token is empty or too long, or contains characters other than visible ASCII. The error does
/// not contain the token.
pub fn check_provider_token(token: &str) -> Result<(), FieldFault> {
    match token.len() {
        0 => Err(Required.because("is empty")),
        1..=PROVIDER_TOKEN_MAX if token.bytes().all(|b| b.is_ascii_graphic()) => Ok(()),
        1..=PROVIDER_TOKEN_MAX => Err(InvalidCharacter.because("may only contain visible ASCII characters")),
        bytes => Err(TooLong.because(format!("is {bytes} bytes; the maximum is {PROVIDER_TOKEN_MAX}"))),
    }
}

/// Checks the role of a login.
///
/// # Errors
/// Returns an error if the role is too long or contains a control character.
pub fn check_provider_role(role: &str) -> Result<(), FieldFault> {
    check_text(role, PROVIDER_ROLE_MAX)
}

fn check_version(version: &str) -> Result<(), FieldFault> {
    check_text(version, REFERENCE_VERSION_MAX)?;
    let is_plain = version.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if is_plain { Ok(()) } else { Err(InvalidFormat.because("may only contain `[A-Za-z0-9._-]`")) }
}

fn check_text(text: &str, most: usize) -> Result<(), FieldFault> {
    if text.len() > most {
        return Err(TooLong.because(format!("is {} bytes; the maximum is {most}", text.len())));
    }
    if text.chars().any(is_harmful) {
        return Err(InvalidCharacter.because("contains a control character or a bidirectional mark"));
    }
    Ok(())
}

/// Returns true if a rule's path covers a reference's path: both are equal, or the reference's path is below the rule's
/// path. `/` covers every path.
pub fn covers(rule: &str, path: &str) -> bool {
    let rule = rule.strip_suffix('/').unwrap_or(rule);
    rule.is_empty() || path.strip_prefix(rule).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_ends_at_a_slash() {
        let table = [
            ("kv/app/", "kv/app/db", true),
            ("kv/app", "kv/app/db", true),
            ("kv/app/", "kv/app", true),
            ("kv/app", "kv/apple", false),
            ("kv/app/", "kv", false),
            ("kv/app/db", "kv/app", false),
            ("/", "anything", true),
            ("kv/APP", "kv/app", false),
        ];
        for (rule, path, expected) in table {
            assert_eq!(covers(rule, path), expected, "{rule} {path}");
        }
    }

    #[test]
    fn secret_reference_parts_are_validated() {
        let of = |provider: &str, path: &str, key: &str, version: &str| SecretReference {
            provider: provider.into(),
            path: path.into(),
            key: key.into(),
            version: version.into(),
        };
        assert_eq!(of("vault.1", "kv/db", "pass word", "3").faults(), []);
        assert_eq!(of("vault.1", "kv/db", "p", "3").to_string(), "vault.1:kv/db#p@3");
        let long = "a".repeat(2000);
        let bad = of(&long, &long, &long, &long).faults();
        assert_eq!(bad.iter().map(|(field, _)| *field).collect::<Vec<_>>(), ["provider", "path", "key", "version"]);
        for path in ["", "/a", "a/", "a//b", "a/../b", ".", "..", "a/.", "a\nb", "a\u{7f}", "a\u{202e}"] {
            assert!(matches!(&of("p", path, "", "").faults()[..], [("path", _)]), "{path:?}");
        }
        for provider in ["", "A", "-a", ".a", "a b", "a/b", "\u{e4}"] {
            assert!(matches!(&of(provider, "a", "", "").faults()[..], [("provider", _)]), "{provider:?}");
        }
        assert!(matches!(&of("p", "a", "k\0", "1/2").faults()[..], [("key", _), ("version", _)]));
    }
}
