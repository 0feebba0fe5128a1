//! Checks names by Kubernetes' syntax rules.

/// Returns true for a valid label value: empty, or at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit
/// at both ends.
pub(super) fn is_label_value(value: &str) -> bool {
    value.is_empty() || (value.len() <= 63 && is_name(value))
}

fn is_name(value: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let end = |c: char| c.is_ascii_alphanumeric();
    value.bytes().all(inner) && value.starts_with(end) && value.ends_with(end)
}

/// Returns true for a qualified name of Kubernetes: `[PREFIX/]NAME`, where PREFIX is a DNS subdomain.
pub(super) fn is_qualified(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(is_subdomain) && (1..=63).contains(&name.len()) && is_name(name)
}

/// Returns true for a DNS subdomain (RFC 1123).
pub(super) fn is_subdomain(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let label =
        |label: &str| !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-');
    name.len() <= 253 && name.split('.').all(label)
}

/// Returns true for a DNS label that begins with a letter (RFC 1035).
pub(super) fn is_word(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= 63
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
        && name.bytes().all(inner)
}
