//! Names of objects, containers and keys (P6, P7).

/// Tells whether a text is a DNS label: 1 to 63 of `[a-z0-9-]`, a letter or digit at both ends.
pub(crate) fn is_label(text: &str) -> bool {
    let ends = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    (1..=63).contains(&bytes.len())
        && bytes.iter().all(|byte| ends(*byte) || *byte == b'-')
        && ends(bytes[0])
        && ends(bytes[bytes.len() - 1])
}

/// Tells whether a text is a DNS subdomain: labels with dots between them, at most 253 bytes.
pub(crate) fn is_subdomain(text: &str) -> bool {
    let part = |part: &str| is_label(part) || (part.len() > 63 && is_label(&part[..63]) && part.is_ascii());
    text.len() <= 253 && text.split('.').all(part)
}

/// Tells whether a text is a key of a ConfigMap or Secret: 1 to 253 of `[-._a-zA-Z0-9]`, not `.`, not beginning with `..`.
pub(crate) fn is_key(text: &str) -> bool {
    (1..=253).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
        && text != "."
        && !text.starts_with("..")
}

/// Tells whether a path below a volume is relative and has no `..`.
pub(crate) fn is_below(path: &str) -> bool {
    !path.is_empty() && !path.starts_with('/') && path.split('/').all(|part| part != "..") && !path.contains('\0')
}
