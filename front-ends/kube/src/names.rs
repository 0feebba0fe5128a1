//! Names of objects, containers and keys (P6, P7).

/// Tells whether a text is a DNS label: 1 to 63 of `[a-z0-9-]`, a letter or digit at both ends.
pub(crate) fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_spelled_as_label(text)
}

/// Tells whether a text is a DNS subdomain: labels with dots between them, at most 253 bytes.
///
/// As in Kubernetes, the limit is on the whole: one part may be longer than 63 bytes.
pub(crate) fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_spelled_as_label)
}

/// Tells whether a text is of `[a-z0-9-]`, with a letter or digit at both ends.
fn is_spelled_as_label(text: &str) -> bool {
    let ends = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(ends)
        && bytes.last().is_some_and(ends)
        && bytes.iter().all(|byte| ends(byte) || *byte == b'-')
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p6_names_are_judged_by_every_byte() {
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
}
