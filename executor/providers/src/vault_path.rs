//! Handles paths at Vault and OpenBao: detects system mounts, which hold no secrets for containers, and encodes URLs.
//!
//! `auth/`, `sys/`, `identity/` and `cubbyhole/` exist in every namespace and expose data of the token that reads them.
//! For example, `auth/token/lookup-self` returns the token itself. A namespace may precede a mount
//! (`team/auth/token/lookup-self`). Because this module cannot distinguish namespaces, it refuses these names at every
//! position of a path.

/// Mounts that exist in every namespace.
const SYSTEM_MOUNTS: [&str; 4] = ["auth", "sys", "identity", "cubbyhole"];

/// Returns the mount that contains a path (the longest, as on the server), and the rest of the path.
pub(crate) fn below<'a>(mounts: &'a [String], path: &'a str) -> Option<(&'a str, &'a str)> {
    let rest = |mount: &'a String| Some((mount.as_str(), path.strip_prefix(mount.as_str())?.strip_prefix('/')?));
    mounts.iter().filter_map(rest).max_by_key(|(mount, _)| mount.len())
}

/// Returns the reason if a path must not be read. Below a mount of KV version 2 every path is a secret, regardless of
/// its name.
pub(crate) fn refusal(kv_mounts: &[String], path: &str) -> Option<String> {
    if decoded(path).split(['/', '\\']).any(|part| matches!(part, "." | "..")) {
        return Some("contains an escaped `.` or `..`, which a proxy in front of the server may resolve".into());
    }
    let mount = if below(kv_mounts, path).is_some() { None } else { system_mount(path) };
    mount.map(|mount| {
        format!("contains `{mount}`, a system mount of the server, which has tokens and settings rather than secrets")
    })
}

/// Returns the system mount that a path may be in.
///
/// The server decodes a URL once and is case-sensitive, but a proxy in front of the server may decode again or ignore
/// case. Therefore, this check decodes all escapes, and ignores case and white space around components.
pub(crate) fn system_mount(path: &str) -> Option<&'static str> {
    let decoded = decoded(path);
    decoded.split(['/', '\\']).find_map(|part| {
        // Some proxies strip parameters of a component (RFC 3986, section 3.3).
        let part = part.split([';', '?', '#']).next().unwrap_or_default().trim();
        SYSTEM_MOUNTS.into_iter().find(|mount| part.eq_ignore_ascii_case(mount))
    })
}

/// Decodes `%XX` repeatedly until nothing changes.
fn decoded(path: &str) -> String {
    let mut bytes = path.as_bytes().to_vec();
    loop {
        let mut out = Vec::with_capacity(bytes.len());
        let mut rest = &bytes[..];
        while let [first, after @ ..] = rest {
            let digit = |at: usize| after.get(at).and_then(|byte| char::from(*byte).to_digit(16));
            match (first, digit(0), digit(1)) {
                (b'%', Some(high), Some(low)) => {
                    out.push((high * 16 + low) as u8);
                    rest = &after[2..];
                }
                _ => {
                    out.push(*first);
                    rest = after;
                }
            }
        }
        // Each iteration except the last shortens the path.
        if out.len() == bytes.len() {
            return String::from_utf8_lossy(&out).into_owned();
        }
        bytes = out;
    }
}

/// Encodes a path for a URL.
pub(crate) fn encoded(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => text.push(char::from(byte)),
            other => text.push_str(&format!("%{other:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_percent_encoded() {
        assert_eq!(encoded("a b/c?d%e"), "a%20b/c%3Fd%25e");
    }

    #[test]
    fn path_of_system_mount_is_found() {
        for (path, mount) in [
            ("auth/token/lookup-self", "auth"),
            ("auth", "auth"),
            ("AUTH/token/lookup-self", "auth"),
            ("team/auth/token/lookup-self", "auth"),
            ("a/b/sys/raw/core", "sys"),
            ("cubbyhole/response", "cubbyhole"),
            ("Identity/oidc/token/x", "identity"),
            ("%61uth/token/lookup-self", "auth"),
            ("%2561uth/token", "auth"),
            ("%25252561uth%25252Ftoken", "auth"),
            ("team%2fauth%2ftoken", "auth"),
            ("team/auth;v=1/token", "auth"),
            ("team\\auth\\token", "auth"),
            (" auth /token", "auth"),
            ("x//auth/token", "auth"),
        ] {
            assert_eq!(system_mount(path), Some(mount), "{path}");
            assert!(refusal(&["kv".into()], path).is_some_and(|why| why.contains(mount)), "{path}");
        }
        assert!(refusal(&["kv".into()], "kv/%252e%252E/%2e./auth/token/lookup-self").is_some());
        for path in
            ["kv/authority", "kv/app/oauth", "system/db", "kv/my-identity", "database/creds/app", "kv/100%", "%zzauth"]
        {
            assert_eq!((system_mount(path), refusal(&[], path)), (None, None), "{path}");
        }
        let mounts = ["kv".to_owned(), "kv/team".to_owned()];
        assert_eq!(refusal(&mounts, "kv/app/auth/token"), None, "a secret of version 2 of KV");
        assert_eq!(below(&mounts, "kv/team/a/b"), Some(("kv/team", "a/b")));
        assert_eq!((below(&mounts, "kv"), below(&mounts, "kvx/a")), (None, None));
    }
}
