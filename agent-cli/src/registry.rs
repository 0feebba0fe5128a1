//! Image references, and credentials for their registries.

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::source::{self, Argument, Flag};
use executor_cli_kit::text::plain;
use executor_client::v1::RegistryCredentials;
use executor_registry_auth::{Credentials, FILE_MAX, from_docker_config};
use zeroize::Zeroizing;

/// Schemes of image references.
const SCHEMES: [&str; 4] = ["docker://", "oci:", "oci-archive:", "docker-archive:"];
/// Registry of images whose names have no registry.
const DEFAULT_REGISTRY: &str = "docker.io";

/// Makes the path in a reference to a local image absolute, because executord has a different working directory.
pub(crate) fn from_here(reference: String) -> String {
    let scheme = SCHEMES[1..].iter().find(|scheme| reference.starts_with(**scheme));
    let Some((scheme, path)) = scheme.and_then(|scheme| Some((scheme, reference.strip_prefix(scheme)?))) else {
        return reference;
    };
    if path.starts_with('/') || path.is_empty() {
        return reference;
    }
    let path = path.strip_prefix("./").unwrap_or(path);
    match std::env::current_dir().ok().as_deref().and_then(std::path::Path::to_str) {
        Some(here) => format!("{scheme}{}/{path}", here.trim_end_matches('/')),
        None => reference,
    }
}

/// Credentials for the registry of an image.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Registry")]
pub(crate) struct RegistryArgs {
    /// User name for the image's registry
    #[arg(long, value_name = "NAME", requires = "registry_password", conflicts_with = "registry_auth_file")]
    pub(crate) registry_user: Option<String>,
    /// The user's password: @FILE, @- (standard input) or @env:VARIABLE
    ///
    /// A newline at the end of the source is removed. The password is sent to executord for this image and not stored.
    #[arg(long, value_name = "SOURCE", requires = "registry_user")]
    pub(crate) registry_password: Option<String>,
    /// File with credentials, as written by `docker login` and `podman login`: ~/.docker/config.json
    ///
    /// Uses the entry for the image's registry. Runs the credential helper that the file configures for it
    /// (credHelpers, credsStore).
    #[arg(long, value_name = "FILE")]
    pub(crate) registry_auth_file: Option<PathBuf>,
}

impl RegistryArgs {
    /// Returns the credentials for an image.
    ///
    /// # Errors
    /// Returns an error if a source cannot be read, or if the file has no entry for the registry.
    pub(crate) fn credentials(
        self,
        reference: &str,
        stdin: &mut dyn Read,
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Option<RegistryCredentials>, Failure> {
        if let (Some(username), Some(text)) = (self.registry_user, self.registry_password) {
            let argument = Argument::bare(Flag::RegistryPassword, &text)?;
            let content = source::read_all(vec![argument], stdin, variable)?.pop();
            let password = content.map(|content| content.into_text()).transpose()?.unwrap_or_default();
            return Ok(Some(given(username, &password)));
        }
        let Some(path) = self.registry_auth_file else { return Ok(None) };
        let wrong = |why: String| Failure::Usage(format!("--registry-auth-file {}: {why}", path.display()));
        let Some((registry, repository)) = repository(reference) else {
            return Err(wrong(format!("{} is not in a registry", plain(reference))));
        };
        let mut content = Zeroizing::new(Vec::with_capacity(FILE_MAX + 1));
        let file = std::fs::File::open(&path).map_err(|error| wrong(error.to_string()))?;
        file.take(FILE_MAX as u64 + 1).read_to_end(&mut content).map_err(|error| wrong(error.to_string()))?;
        match from_docker_config(&content, &registry, &repository).map_err(|error| wrong(error.to_string()))? {
            None => Err(wrong(format!("the file has no credentials for {registry}"))),
            Some(Credentials::Basic { username, password }) => Ok(Some(given(username, &password))),
            Some(Credentials::IdentityToken(token)) => {
                Ok(Some(RegistryCredentials { identity_token: token.to_string(), ..RegistryCredentials::default() }))
            }
            Some(Credentials::RegistryToken(token)) => {
                Ok(Some(RegistryCredentials { registry_token: token.to_string(), ..RegistryCredentials::default() }))
            }
        }
    }
}

fn given(username: String, password: &Zeroizing<String>) -> RegistryCredentials {
    RegistryCredentials { username, password: password.to_string(), ..RegistryCredentials::default() }
}

/// Returns true if a reference has one of the schemes of images.
pub(crate) fn is_image(reference: &str) -> bool {
    SCHEMES.iter().any(|scheme| reference.starts_with(scheme))
}

/// Returns the registry and repository of a reference, which may be short; `None` if the image is not in a registry.
fn repository(reference: &str) -> Option<(String, String)> {
    let name = match reference.strip_prefix("docker://") {
        Some(name) => name,
        None if is_image(reference) || reference == "host" || reference.starts_with("dir:") => return None,
        None => reference,
    };
    let name = name.split('@').next().unwrap_or(name);
    let path_at = name.rfind('/').map_or(0, |at| at + 1);
    let name = name[path_at..].find(':').map_or(name, |colon| &name[..path_at + colon]);
    Some(match name.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => (host.to_owned(), path.to_owned()),
        Some(_) => (DEFAULT_REGISTRY.to_owned(), name.to_owned()),
        None => (DEFAULT_REGISTRY.to_owned(), format!("library/{name}")),
    })
}

/// Adds the scheme to a reference without a scheme.
pub(crate) fn long(text: String) -> String {
    if is_image(&text) || text == "host" || text.starts_with("dir:") { text } else { format!("docker://{text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_of_reference_is_found() {
        let table = [
            ("debian:12", Some(("docker.io", "library/debian"))),
            ("docker://a/b@sha256:00", Some(("docker.io", "a/b"))),
            ("127.0.0.1:5000/x/y:tag", Some(("127.0.0.1:5000", "x/y"))),
            ("localhost/x", Some(("localhost", "x"))),
            ("oci:/a", None),
            ("docker-archive:/a.tar:x", None),
        ];
        for (reference, expected) in table {
            let expected = expected.map(|(registry, path)| (registry.to_owned(), path.to_owned()));
            assert_eq!(repository(reference), expected, "{reference}");
        }
    }
}
