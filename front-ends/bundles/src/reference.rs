//! Image references in the distribution project's grammar, with Docker's short names. Only the form is checked.

/// Maximum length of registry and repository together, in bytes.
const NAME_MAX: usize = 255;
/// Maximum length of a tag, in bytes.
const TAG_MAX: usize = 128;

/// Checks a reference: `[REGISTRY[:PORT]/]REPOSITORY[:TAG][@DIGEST]`.
///
/// # Errors
/// Returns the first fault in words.
pub fn check(reference: &str) -> Result<(), &'static str> {
    if reference.len() == 64 && reference.bytes().all(is_hex) {
        return Err("is 64 hexadecimal digits, which is not a valid name");
    }
    let (rest, digest) = match reference.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (reference, None),
    };
    // A repository without a registry is Docker's; with a registry, the first component is a host.
    let (host, rest) = match rest.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => (Some(host), path),
        _ => (None, rest),
    };
    let (path, tag) = match rest.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
        _ => (rest, None),
    };
    if host.is_some_and(|host| !is_host(host)) {
        return Err("has a registry that is not a host with an optional port");
    }
    if path.is_empty() || !path.split('/').all(is_component) {
        return Err("has a repository that is not made of a-z, 0-9 and the separators `.`, `_`, `__` and `-`");
    }
    if host.unwrap_or("docker.io").len() + 1 + path.len() > NAME_MAX {
        return Err("has a registry and repository of more than 255 bytes");
    }
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return Err("has a tag that is not valid");
    }
    if digest.is_some_and(|digest| !is_digest(digest)) {
        return Err("has a digest that is not valid");
    }
    Ok(())
}

fn is_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

fn is_host(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port))
                if !address.is_empty() && address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':') =>
            {
                return port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
            }
            _ => return false,
        },
        None => host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
    };
    let label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    name.split('.').all(label) && port.is_none_or(is_port)
}

fn is_port(port: &str) -> bool {
    !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns true for letters and digits with single separators between them.
fn is_component(component: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let mut bytes = component.bytes().peekable();
    let mut after_separator = true;
    while let Some(byte) = bytes.next() {
        if plain(byte) {
            after_separator = false;
            continue;
        }
        if after_separator || !matches!(byte, b'.' | b'_' | b'-') {
            return false;
        }
        match byte {
            b'_' => _ = bytes.next_if_eq(&b'_'),
            b'-' => while bytes.next_if_eq(&b'-').is_some() {},
            _ => {}
        }
        after_separator = true;
    }
    !after_separator
}

fn is_tag(tag: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    !tag.is_empty() && tag.len() <= TAG_MAX && tag.bytes().all(inner) && !tag.starts_with(['.', '-'])
}

/// Returns true for a digest with an algorithm that registries use.
fn is_digest(digest: &str) -> bool {
    let digits = |algorithm: &str| match algorithm {
        "sha256" => Some(64),
        "sha384" => Some(96),
        "sha512" => Some(128),
        _ => None,
    };
    digest
        .split_once(':')
        .is_some_and(|(algorithm, hex)| digits(algorithm) == Some(hex.len()) && hex.bytes().all(is_hex))
}

/// Returns the digest of a reference, if it has one: `sha256:HEX`.
pub fn digest(reference: &str) -> Option<&str> {
    reference.split_once('@').map(|(_, digest)| digest).filter(|digest| is_digest(digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references() {
        let hex = "a".repeat(64);
        let digest = format!("quay.io/a/b@sha256:{hex}");
        let both = format!("quay.io/a/b:v1@sha256:{hex}");
        for good in [
            "debian",
            "a/b",
            "quay.io/a/b",
            "quay.io/a/b:v1.2_3-x",
            "localhost:5000/a",
            "[::1]:5000/a",
            "a__b/c--d.e",
            "UP.io/a",
            &digest,
            &both,
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        let short = format!("quay.io/a/b@sha256:{}", &hex[1..]);
        let long = "a".repeat(260);
        for bad in [
            "",
            "A/b:",
            "A/b",
            "Debian",
            "a//b",
            "a/b:",
            "a/b:-x",
            "a b",
            "quay.io/A/b",
            "a/_b",
            "a_-b",
            "a/b@",
            "-x.io/a",
            "http://quay.io/a",
            &hex,
            &short,
            &long,
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
