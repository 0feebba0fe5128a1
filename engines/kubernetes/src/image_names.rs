//! Names of images: executord's references as Kubernetes writes them, and hosts of registries.

/// Scheme of references to registries.
const SCHEME: &str = "docker://";
/// Docker's registry: the default for names without a host.
const DOCKER: &str = "docker.io";

/// Names of an image, with tags and with digests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    /// `registry/repository:tag`
    pub(crate) tags: Vec<String>,
    /// `registry/repository@sha256:...`
    pub(crate) digests: Vec<String>,
}

impl Names {
    /// Returns the names of an image. `manifest` and `index` are digests; `index` is empty if the image was not chosen
    /// from an index.
    pub(crate) fn new<'a>(references: impl IntoIterator<Item = &'a String>, manifest: &str, index: &str) -> Self {
        let mut names = Self::default();
        for reference in references {
            let Some(name) = reference.strip_prefix(SCHEME) else {
                names.tags.push(reference.clone());
                continue;
            };
            let repository = repository(name);
            if name.len() > repository.len() && !name.contains('@') {
                names.tags.push(name.to_owned());
            }
            names.digests.extend(
                [index, manifest]
                    .iter()
                    .filter(|digest| !digest.is_empty())
                    .map(|digest| format!("{repository}@{digest}")),
            );
        }
        for list in [&mut names.tags, &mut names.digests] {
            list.sort();
            list.dedup();
        }
        names
    }
}

/// Returns a name without its tag and digest.
fn repository(name: &str) -> &str {
    let name = name.split('@').next().unwrap_or(name);
    match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name,
    }
}

/// Returns a reference by the manifest's digest, so that a moved tag has no effect; or the first reference if the image
/// is not from a registry.
pub(crate) fn rootfs(references: &[String], manifest: &str) -> Option<String> {
    let of_registry = references.iter().find_map(|reference| reference.strip_prefix(SCHEME));
    match of_registry {
        Some(name) => Some(format!("{SCHEME}{}@{manifest}", repository(name))),
        None => references.first().cloned(),
    }
}

/// Returns the host and port of the registry in an image's name.
fn registry(image: &str) -> &str {
    let image = image.strip_prefix(SCHEME).unwrap_or(image);
    match image.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        _ => DOCKER,
    }
}

/// Returns true if credentials for a server may be used for an image (rule C39): `server` is empty or the image's
/// registry.
pub(crate) fn is_server_of(server: &str, image: &str) -> bool {
    let server = server.trim();
    server.is_empty() || executor_registry_auth::is_registry(server, registry(image))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule C40: tags are normalized; an image that was pulled by digest has no tags.
    #[test]
    fn names_are_tags_or_digests() {
        let references =
            ["docker://r.example:5000/a/b:1".to_owned(), "docker://r.example:5000/a/b@sha256:aa".to_owned()];
        let names = Names::new(&references, "sha256:aa", "");
        assert_eq!(names.tags, ["r.example:5000/a/b:1"]);
        assert_eq!(names.digests, ["r.example:5000/a/b@sha256:aa"]);
        assert_eq!(rootfs(&references, "sha256:aa").unwrap(), "docker://r.example:5000/a/b@sha256:aa");
        let names = Names::new(&references[1..], "sha256:aa", "sha256:ii");
        assert_eq!(names.tags, Vec::<String>::new());
        assert_eq!(names.digests.len(), 2);
    }

    /// Rule C39: credentials are used only for images of their server.
    #[test]
    fn credentials_stay_with_their_server() {
        for (server, image, expected) in [
            ("", "a/b", true),
            ("https://index.docker.io/v1/", "busybox", true),
            ("https://index.docker.io/v1/", "library/busybox:1", true),
            ("r.example", "r.example/a:1", true),
            ("https://R.example:443", "r.example/a", false),
            ("http://r.example:5000/v2/", "r.example:5000/a@sha256:aa", true),
            ("other.example", "r.example/a", false),
            ("other.example", "busybox", false),
        ] {
            assert_eq!(is_server_of(server, image), expected, "{server} {image}");
        }
    }
}
