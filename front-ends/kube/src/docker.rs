//! Images: references, when they are fetched, and the credentials of `imagePullSecrets` (P60).

use executor_client::v1::{PullPolicy, RegistryCredentials};
use executor_registry_auth::{Credentials, from_docker_config};

use crate::config::Config;

/// Registry of names without a host.
const HUB: &str = "docker.io";

/// Rule for fetching an image: as it is asked for, else Always for `:latest` and for no tag, else IfNotPresent.
pub fn policy(image: &str, asked: Option<&str>) -> Option<PullPolicy> {
    Some(match asked {
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

/// Tells whether a text can be the name of an image: no scheme, no space, no upper case in the repository.
pub fn is_image(image: &str) -> bool {
    let (_, repository) = split(image);
    !image.is_empty()
        && image.len() <= 500
        && !image.contains("://")
        && image.bytes().all(|byte| byte.is_ascii_graphic())
        && !repository.bytes().any(|byte| byte.is_ascii_uppercase())
}

/// Registry and repository of an image.
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

/// Credentials for an image among pull secrets: the first that has one.
///
/// # Errors
/// A pull secret cannot be read: its name, and why, without a value.
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
            Some(Credentials::RegistryToken(_)) => {
                return Err(wrong("has a registry token, which executord does not take".into()));
            }
        }
    }
    Ok(None)
}
