//! Validates names of bindings and of their entries.
//!
//! Each rule must match the whole name. Cloud Controller uses Ruby's `^` and `$`, which match at every line, so it
//! accepts `good\n../../etc/passwd`. The name `.` and names that begin with `..` consist of allowed characters but are
//! rejected here: a rotation uses names that begin with `..` for its links.

/// Entry that makes a directory a binding.
pub(crate) const TYPE: &str = "type";
/// Entry with the provider of the service.
pub(crate) const PROVIDER: &str = "provider";
/// Attributes that describe a binding and grant no access. All other attributes count as secrets, because the URL of a
/// log drain, for example, can hold a password.
pub(crate) const PUBLIC: [&str; 10] =
    [TYPE, PROVIDER, "label", "plan", "tags", "name", "binding_name", "instance_name", "binding_guid", "instance_guid"];

/// Maximum length of a name, in bytes.
const LENGTH_MAX: usize = 253;

/// Rule for names, as Cloud Controller prints it.
pub(crate) const BINDING_RULE: &str = r"/^[a-z0-9\-.]{1,253}$/";

/// Returns true for the name of a binding: `[a-z0-9\-.]{1,253}`.
pub(crate) fn is_binding(name: &str) -> bool {
    is_name(name, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.'))
}

/// Returns true for the name of an entry from VCAP_SERVICES: `[a-z0-9\-._]{1,253}`.
pub(crate) fn is_entry(name: &str) -> bool {
    is_name(name, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.' | b'_'))
}

/// Returns true if `name` is a valid name for a file of a binding directory: `[A-Za-z0-9\-._]{1,253}`.
///
/// These are the keys of Kubernetes Secrets. Upper case is allowed.
pub(crate) fn is_key(name: &str) -> bool {
    is_name(name, |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
}

fn is_name(name: &str, allowed: impl Fn(u8) -> bool) -> bool {
    (1..=LENGTH_MAX).contains(&name.len()) && name != "." && !name.starts_with("..") && name.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_binding_names_are_refused() {
        let long = "a".repeat(253);
        for name in ["a", "my-db.1", "0", "-", ".x", &long] {
            assert!(is_binding(name) && is_entry(name) && is_key(name), "{name}");
        }
        let longer = "a".repeat(254);
        let bad =
            ["", ".", "..", "..data", "...", "a/b", "/", "good\n../x", "good\n", "\ngood", "a\0", "ä", "a b", &longer];
        for name in bad {
            assert!(!is_binding(name) && !is_entry(name) && !is_key(name), "{name:?}");
        }
        assert!(!is_binding("a_b") && is_entry("a_b"));
        assert!(!is_entry("Password") && is_key("Password"));
    }
}
