//! Checks names of objects, containers and keys (rules P6 and P7 of `docs/guides/kube-rules.md`).

/// Returns true for a DNS label: 1 to 63 characters of `[a-z0-9-]`, with a letter or digit at both ends.
pub(crate) fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_spelled_as_label(text)
}

/// Returns true for a DNS subdomain: labels separated by dots, at most 253 bytes.
///
/// As in Kubernetes, only the total length is limited: a single label may be longer than 63 bytes.
pub(crate) fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_spelled_as_label)
}

/// Returns true if a string consists of `[a-z0-9-]`, with a letter or digit at both ends.
fn is_spelled_as_label(text: &str) -> bool {
    let ends = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(ends)
        && bytes.last().is_some_and(ends)
        && bytes.iter().all(|byte| ends(byte) || *byte == b'-')
}

/// Returns true for a key of a ConfigMap or Secret: 1 to 253 characters of `[-._a-zA-Z0-9]`. The key must not be `.`
/// and not begin with `..`.
pub(crate) fn is_key(text: &str) -> bool {
    (1..=253).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
        && text != "."
        && !text.starts_with("..")
}

/// Returns true for the key of a label or an annotation: `[PREFIX/]NAME`, where PREFIX is a DNS subdomain, and NAME is
/// 1 to 63 characters of `[-._A-Za-z0-9]` with a letter or digit at both ends.
pub(crate) fn is_qualified(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(is_subdomain) && !name.is_empty() && is_label_value(name)
}

/// Returns true for the value of a label: empty, or at most 63 characters of `[-._A-Za-z0-9]` with a letter or digit at
/// both ends.
pub(crate) fn is_label_value(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    bytes.len() <= 63
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(byte))
}

/// Returns true for the name of a port: 1 to 15 characters of `[a-z0-9-]`, at least one of them a letter, without `--`
/// and without `-` at the start or end.
pub(crate) fn is_port_name(text: &str) -> bool {
    text.len() <= 15
        && is_spelled_as_label(text)
        && !text.contains("--")
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
}

/// Returns true for the path of a file in a volume: a path below the volume that does not begin with `..`. The prefix
/// `..` is reserved.
pub(crate) fn is_item_path(path: &str) -> bool {
    is_below(path) && !path.starts_with("..")
}

/// Returns true for a relative path without `..`.
pub(crate) fn is_below(path: &str) -> bool {
    !path.is_empty() && !path.starts_with('/') && path.split('/').all(|part| part != "..") && !path.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p6_invalid_names_are_refused() {
        let (long, longest) = ("a".repeat(64), "a".repeat(253));
        for (text, label, subdomain) in [
            ("a", true, true),
            ("a-1", true, true),
            ("a.b", false, true),
            (&long[1..], true, true),
            (&long, false, true),
            (&longest, false, true),
            (&format!("{longest}a"), false, false),
            (&format!("{long}_"), false, false),
            (&format!("a{}_b", "\u{fffd}".repeat(48)), false, false),
            ("", false, false),
            ("a..b", false, false),
            ("-a", false, false),
            ("a-", false, false),
            ("A", false, false),
        ] {
            assert_eq!((is_label(text), is_subdomain(text)), (label, subdomain), "{text:?}");
        }
    }

    #[test]
    fn p6_keys_and_values_of_labels() {
        let (longest, long) = ("a".repeat(63), "a".repeat(64));
        for (text, key, value) in [
            ("app", true, true),
            ("a.b_C-1", true, true),
            ("example.com/app", true, false),
            (&longest, true, true),
            (&long, false, false),
            (&format!("{longest}.example.com/{longest}"), true, false),
            ("", false, true),
            ("Example.com/app", false, false),
            ("/app", false, false),
            ("a/b/c", false, false),
            ("-a", false, false),
            ("a.", false, false),
            ("a b", false, false),
            ("ä", false, false),
        ] {
            assert_eq!((is_qualified(text), is_label_value(text)), (key, value), "{text:?}");
        }
    }
}
