//! Splits paths of Secrets in a Kubernetes cluster.

/// Maximum length of the name of an object, in bytes.
const NAME_MAX: usize = 253;

/// Splits a path `NAMESPACE/NAME`. Returns `None` for any other path, and if a name is invalid.
pub(crate) fn place(path: &str) -> Option<(&str, &str)> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let is_name = |name: &str| {
        (1..=NAME_MAX).contains(&name.len())
            && name.bytes().all(is_inner)
            && !name.starts_with('.')
            && !name.ends_with('.')
    };
    let (namespace, name) = path.split_once('/')?;
    (is_name(namespace) && !namespace.contains('.') && is_name(name)).then_some((namespace, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_one_secret() {
        assert_eq!(place("shop/db.main-1"), Some(("shop", "db.main-1")));
        for path in [
            "",
            "shop",
            "shop/",
            "/db",
            "shop/db/x",
            "a.b/db",
            "shop/..",
            "shop/.a",
            "shop/A",
            "shop/a%2fb",
            "shop/a?b",
        ] {
            assert_eq!(place(path), None, "{path}");
        }
        assert_eq!(place(&format!("shop/{}", "a".repeat(NAME_MAX + 1))), None);
    }
}
