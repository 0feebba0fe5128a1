//! Checks the syntax of names, label keys and label values (Kubernetes, "Labels and Selectors").

/// Maximum length, in bytes, of a label value, and of the name in a label key.
const PART_MAX: usize = 63;
/// Maximum length, in bytes, of an object name, and of the prefix in a label key.
const SUBDOMAIN_MAX: usize = 253;

/// Returns true for a lower-case DNS subdomain (RFC 1123), such as an object name.
pub(crate) fn is_subdomain(text: &str) -> bool {
    text.len() <= SUBDOMAIN_MAX && text.split('.').all(is_label)
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=PART_MAX).contains(&text.len()) && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// Returns true for a label key: `[PREFIX/]NAME`.
pub(crate) fn is_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_name(name),
        None => is_name(text),
    }
}

/// Returns true for a label value, which may be empty.
pub(crate) fn is_value(text: &str) -> bool {
    text.is_empty() || is_name(text)
}

fn is_name(text: &str) -> bool {
    let outer = |byte: &u8| byte.is_ascii_alphanumeric();
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let bytes = text.as_bytes();
    bytes.len() <= PART_MAX
        && bytes.iter().all(inner)
        && bytes.first().is_some_and(outer)
        && bytes.last().is_some_and(outer)
}
