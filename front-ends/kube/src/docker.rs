//! Determines pull policies and credentials (`imagePullSecrets`) for images (rule P60 of `docs/guides/kube-rules.md`).

use executor_client::v1::{PullPolicy, RegistryCredentials};
use executor_registry_auth::{Credentials, from_docker_config};

use crate::config::Config;

/// Default registry of image names without a host.
const HUB: &str = "docker.io";

/// Returns the requested pull policy. If none is requested, the policy is Always for `:latest` or a missing tag,
/// otherwise IfNotPresent. `None` if the requested policy is unknown.
pub fn policy(image: &str, asked: Option<&str>) -> Option<PullPolicy> {
    Some(match asked.filter(|asked| !asked.is_empty()) {
        Some("Always") => PullPolicy::Always,
        Some("IfNotPresent") => PullPolicy::IfMissing,
        Some("Never") => PullPolicy::Never,
        Some(_) => return None,
        None => {
            let name = image.rsplit('/').next().unwrap_or(image);
            let latest = !image.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest");
            if latest { PullPolicy::Always } else { PullPolicy::IfMissing }
        }
    })
}

/// Returns true for a valid image name: `[HOST[:PORT]/]PATH[:TAG][@DIGEST]`, where PATH has no upper-case letters.
pub fn is_image(image: &str) -> bool {
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    let (name, tag) = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (name, None),
    };
    let path = match name.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
            if !host.bytes().all(plain) || host.starts_with(['.', ':', '-']) {
                return false;
            }
            path
        }
        _ => name,
    };
    let ends = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let part = |part: &str| {
        let bytes = part.as_bytes();
        ends(bytes.first())
            && ends(bytes.last())
            && bytes.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(byte))
    };
    let word = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let is_tag = |tag: &str| (1..=128).contains(&tag.len()) && !tag.starts_with(['.', '-']) && tag.bytes().all(word);
    let is_digest = |digest: &str| {
        let parts = digest.split_once(':');
        parts.is_some_and(|(kind, hex)| {
            !kind.is_empty() && hex.len() >= 32 && hex.bytes().all(|b| b.is_ascii_hexdigit())
        })
    };
    image.len() <= 500 && path.split('/').all(part) && tag.is_none_or(is_tag) && digest.is_none_or(is_digest)
}

/// Returns the registry and repository of an image.
pub fn split(image: &str) -> (String, String) {
    let name = image.split('@').next().unwrap_or(image);
    let (registry, path) = match name.split_once('/') {
        Some((host, rest)) if host.contains(['.', ':']) || host == "localhost" => (host, rest),
        _ => (HUB, name),
    };
    let path = match path.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => path,
        _ => path,
    };
    let path = if registry == HUB && !path.contains('/') { format!("library/{path}") } else { path.to_owned() };
    (registry.to_owned(), path)
}

/// Returns the credentials for an image from the first pull secret that contains credentials for its registry.
///
/// # Errors
/// Returns the name of a pull secret and the reason, which contains no value, if the secret cannot be parsed.
pub fn credentials(image: &str, secrets: &[&Config]) -> Result<Option<RegistryCredentials>, (String, String)> {
    let (registry, repository) = split(image);
    for secret in secrets {
        let wrong = |message: String| (secret.name.clone(), message);
        let found = if let Some(file) = secret.data.get(".dockerconfigjson") {
            from_docker_config(file.bytes(), &registry, &repository).map_err(|error| wrong(error.to_string()))?
        } else if let Some(entries) = secret.data.get(".dockercfg") {
            let mut file = zeroize::Zeroizing::new(b"{\"auths\":".to_vec());
            file.extend_from_slice(entries.bytes());
            file.push(b'}');
            from_docker_config(&file, &registry, &repository).map_err(|error| wrong(error.to_string()))?
        } else {
            return Err(wrong("has neither `.dockerconfigjson` nor `.dockercfg`".into()));
        };
        match found {
            None => {}
            Some(Credentials::Basic { username, password }) => {
                let password = password.to_string();
                return Ok(Some(RegistryCredentials { username, password, ..RegistryCredentials::default() }));
            }
            Some(Credentials::IdentityToken(token)) => {
                let identity_token = token.to_string();
                return Ok(Some(RegistryCredentials { identity_token, ..RegistryCredentials::default() }));
            }
            Some(Credentials::RegistryToken(token)) => {
                let registry_token = token.to_string();
                return Ok(Some(RegistryCredentials { registry_token, ..RegistryCredentials::default() }));
            }
        }
    }
    Ok(None)
}
