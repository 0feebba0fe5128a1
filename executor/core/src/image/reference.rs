//! Parses image references. A reference names the source of an image and the image itself.
//!
//! ```text
//!  docker://[REGISTRY[:PORT]/]REPOSITORY[:TAG][@DIGEST]     a registry
//!  oci:/DIRECTORY[:NAME]                                    an OCI layout
//!  oci-archive:/FILE.tar[:NAME]                             an OCI layout in a tar archive
//!  docker-archive:/FILE.tar[:NAME]                          an archive of `docker save`
//! ```
//! `docker://` references have the grammar of the distribution project and Docker's short names: `debian` is
//! `docker.io/library/debian:latest`. References are always printed in the long form, which parses to the same
//! reference. The parser of `oci-spec` is not used, because it accepts names that no registry has and refuses IPv6
//! addresses (ADR 51).

use crate::text::printable;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::digest::{BadDigest, Digest};
use crate::violation::{FieldFault, ViolationReason};

/// Maximum total length of registry and repository, in bytes (distribution's reference grammar).
const NAME_MAX: usize = 255;
/// Maximum length of a tag, in bytes.
const TAG_MAX: usize = 128;
/// Maximum length of a path, in bytes, NUL included (the kernel's PATH_MAX).
const PATH_MAX: usize = 4096;
/// Maximum length of the name of an image in a layout or an archive, in bytes.
const INNER_MAX: usize = 512;
/// Maximum length of a reference, in bytes. Longer references are not parsed.
const REFERENCE_MAX: usize = PATH_MAX + INNER_MAX;
/// Registry of references without a host name.
pub(super) const DEFAULT_REGISTRY: &str = "docker.io";
/// Namespace, in the default registry, of images without a namespace.
pub(super) const DEFAULT_NAMESPACE: &str = "library/";
/// Tag of references without a tag or digest.
const DEFAULT_TAG: &str = "latest";

/// Source and name of an image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ImageReference {
    /// Image in a registry.
    Registry(Repository, Selector),
    /// Image in an OCI layout on the executor's disk: the image with this name or, without a name, the only image.
    Layout(PathBuf, Option<String>),
    /// Image in an OCI layout in a tar archive.
    OciArchive(PathBuf, Option<String>),
    /// Image in an archive of `docker save`.
    DockerArchive(PathBuf, Option<String>),
}

/// A repository of a registry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Repository {
    registry: String,
    path: String,
}

/// Tag, digest or both of an image in a repository. The digest takes precedence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector {
    tag: Option<String>,
    digest: Option<Digest>,
}

/// Error in a reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The reference begins with no known scheme.
    #[error("must begin with `docker://`, `oci:`, `oci-archive:` or `docker-archive:`")]
    Scheme,
    /// The reference is too long; holds its length in bytes.
    #[error("is {0} bytes; the maximum is {REFERENCE_MAX}")]
    Length(usize),
    /// The reference is the id of an image instead of a name.
    #[error("is an image id (64 hexadecimal digits); use a name")]
    Id,
    /// The reference has no repository.
    #[error("has no repository; use docker://REGISTRY/REPOSITORY")]
    NoRepository,
    /// The registry is not a host with an optional port.
    #[error("registry `{0}` is not a host name or IP address with an optional port")]
    Registry(String),
    /// A component of the repository is invalid.
    #[error(
        "repository component `{0}` is not valid: use a-z and 0-9, separated by `.`, `_`, `__` or any number of `-`"
    )]
    Component(String),
    /// Registry and repository together are too long; holds their length in bytes.
    #[error("registry and repository are {0} bytes; the maximum is {NAME_MAX}")]
    NameLength(usize),
    /// The tag is invalid.
    #[error(
        "tag `{0}` is not valid: use 1 to {TAG_MAX} of A-Z, a-z, 0-9, `_`, `.` and `-`, not beginning with `.` or `-`"
    )]
    Tag(String),
    /// The digest is invalid.
    #[error("digest {0}")]
    Digest(BadDigest),
    /// The path is invalid.
    #[error("path `{0}` is not valid: it must be absolute, without `.` and `..`, and shorter than {PATH_MAX} bytes")]
    Path(String),
    /// The name inside the layout or archive is invalid.
    #[error("name `{0}` is not valid: use 1 to {INNER_MAX} visible ASCII characters")]
    Inner(String),
}

impl Fault {
    /// Converts the error to a field error.
    pub fn reported(&self) -> FieldFault {
        let reason = match self {
            Self::Length(_) | Self::NameLength(_) => ViolationReason::TooLong,
            _ => ViolationReason::InvalidFormat,
        };
        reason.because(self.to_string())
    }
}

/// Error from parsing a reference; holds every error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadReference(pub Vec<Fault>);

impl fmt::Display for BadReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            write!(f, "{}{fault}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl std::error::Error for BadReference {}

impl Repository {
    /// Returns the host and port as in the reference, for example `docker.io`, `127.0.0.1:5000` or `[::1]:5000`.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Returns the path within the registry, for example `library/debian`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the reference of the image with this digest.
    pub fn pinned(&self, digest: &Digest) -> ImageReference {
        ImageReference::Registry(self.clone(), Selector { tag: None, digest: Some(digest.clone()) })
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.path)
    }
}

impl Selector {
    /// Returns the tag, if there is one.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Returns the digest, if there is one.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// Returns the identifier to request from a registry: the digest if there is one, otherwise the tag.
    pub fn wanted(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => DEFAULT_TAG.to_owned(),
        }
    }
}

impl ImageReference {
    /// Parses a reference as typed on a command line. A reference without a scheme names an image in a registry.
    ///
    /// # Errors
    /// Returns all errors if the reference is invalid.
    pub fn parse_short(text: &str) -> Result<Self, BadReference> {
        match scheme(text) {
            Some(_) => text.parse(),
            None => Self::parse_registry(text),
        }
    }

    /// Parses the reference of an image in a registry, without a scheme.
    ///
    /// # Errors
    /// Returns all errors if the reference is invalid.
    pub fn parse_registry(text: &str) -> Result<Self, BadReference> {
        registry(text)
    }

    /// Returns true if the string begins with the scheme of an image reference. `host` and `dir:` are not image
    /// schemes.
    pub fn is_image(text: &str) -> bool {
        scheme(text).is_some()
    }

    /// Returns the digest, if the reference has one.
    pub fn digest(&self) -> Option<&Digest> {
        match self {
            Self::Registry(_, selector) => selector.digest(),
            _ => None,
        }
    }

    /// Returns the path on the executor's disk and the name in the layout or archive, if the reference has a path.
    pub fn file(&self) -> Option<(&Path, Option<&str>)> {
        match self {
            Self::Registry(..) => None,
            Self::Layout(path, name) | Self::OciArchive(path, name) | Self::DockerArchive(path, name) => {
                Some((path, name.as_deref()))
            }
        }
    }
}

/// Scheme at the beginning of a reference.
#[derive(Clone, Copy)]
enum Scheme {
    Registry,
    Layout,
    OciArchive,
    DockerArchive,
}

const SCHEMES: [(&str, Scheme); 4] = [
    ("docker://", Scheme::Registry),
    ("oci:", Scheme::Layout),
    ("oci-archive:", Scheme::OciArchive),
    ("docker-archive:", Scheme::DockerArchive),
];

fn scheme(text: &str) -> Option<(Scheme, &str)> {
    SCHEMES.into_iter().find_map(|(prefix, scheme)| Some((scheme, text.strip_prefix(prefix)?)))
}

impl FromStr for ImageReference {
    type Err = BadReference;

    fn from_str(text: &str) -> Result<Self, BadReference> {
        if text.len() > REFERENCE_MAX {
            return Err(BadReference(vec![Fault::Length(text.len())]));
        }
        let (scheme, rest) = scheme(text).ok_or_else(|| BadReference(vec![Fault::Scheme]))?;
        match scheme {
            Scheme::Registry => registry(rest),
            Scheme::Layout => file(rest).map(|(path, name)| Self::Layout(path, name)),
            Scheme::OciArchive => file(rest).map(|(path, name)| Self::OciArchive(path, name)),
            Scheme::DockerArchive => file(rest).map(|(path, name)| Self::DockerArchive(path, name)),
        }
    }
}

impl TryFrom<String> for ImageReference {
    type Error = BadReference;

    fn try_from(text: String) -> Result<Self, BadReference> {
        text.parse()
    }
}

impl From<ImageReference> for String {
    fn from(reference: ImageReference) -> Self {
        reference.to_string()
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = |f: &mut fmt::Formatter<'_>, scheme: &str, path: &Path, name: &Option<String>| {
            write!(f, "{scheme}:{}", path.display())?;
            name.as_ref().map_or(Ok(()), |name| write!(f, ":{name}"))
        };
        match self {
            Self::Registry(repository, Selector { tag, digest }) => {
                write!(f, "docker://{repository}")?;
                tag.as_ref().map_or(Ok(()), |tag| write!(f, ":{tag}"))?;
                digest.as_ref().map_or(Ok(()), |digest| write!(f, "@{digest}"))
            }
            Self::Layout(path, name) => file(f, "oci", path, name),
            Self::OciArchive(path, name) => file(f, "oci-archive", path, name),
            Self::DockerArchive(path, name) => file(f, "docker-archive", path, name),
        }
    }
}

fn registry(text: &str) -> Result<ImageReference, BadReference> {
    if text.len() > REFERENCE_MAX {
        return Err(BadReference(vec![Fault::Length(text.len())]));
    }
    if text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(BadReference(vec![Fault::Id]));
    }
    let mut faults = Vec::new();
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, digest.parse().map_err(|bad| faults.push(Fault::Digest(bad))).ok()),
        None => (text, None),
    };
    let pinned = text.contains('@');
    // A colon after the last slash begins a tag; an earlier colon belongs to the registry's port.
    let path_at = rest.rfind('/').map_or(0, |at| at + 1);
    let (name, tag) = match rest[path_at..].find(':') {
        Some(colon) => (&rest[..path_at + colon], Some(&rest[path_at + colon + 1..])),
        None => (rest, None),
    };
    if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
        faults.push(Fault::Tag(printable(tag, 80)));
    }
    let (host, path) = match name.split_once('/') {
        Some((host, path)) if is_host_like(host) => (canonical_registry(host), path.to_owned()),
        _ => (DEFAULT_REGISTRY.to_owned(), name.to_owned()),
    };
    let path = match host == DEFAULT_REGISTRY && !path.is_empty() && !path.contains('/') {
        true => format!("{DEFAULT_NAMESPACE}{path}"),
        false => path,
    };
    if !is_registry(&host) {
        faults.push(Fault::Registry(printable(&host, 80)));
    }
    if path.is_empty() {
        faults.push(Fault::NoRepository);
    } else {
        faults.extend(
            path.split('/').filter(|part| !is_component(part)).map(|part| Fault::Component(printable(part, 80))),
        );
    }
    if host.len() + 1 + path.len() > NAME_MAX {
        faults.push(Fault::NameLength(host.len() + 1 + path.len()));
    }
    if !faults.is_empty() {
        return Err(BadReference(faults));
    }
    let tag = tag.map(str::to_owned).or_else(|| (!pinned).then(|| DEFAULT_TAG.to_owned()));
    Ok(ImageReference::Registry(Repository { registry: host, path }, Selector { tag, digest }))
}

/// Returns the canonical name of a registry.
pub(super) fn canonical_registry(host: &str) -> String {
    let host = host.to_ascii_lowercase();
    if host == "index.docker.io" { DEFAULT_REGISTRY.to_owned() } else { host }
}

/// Returns true if the first component of a repository is a host name, by Docker's rule.
pub(super) fn is_host_like(text: &str) -> bool {
    text.contains(['.', ':']) || text.eq_ignore_ascii_case("localhost")
}

pub(super) fn is_registry(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((inner, rest)) => (inner.parse::<std::net::Ipv6Addr>().is_ok(), rest),
        None => {
            let (host, port) = text.split_at(text.find(':').unwrap_or(text.len()));
            (is_host(host), port)
        }
    };
    let digits = |port: &str| port.len() <= 5 && port.bytes().all(|b| b.is_ascii_digit());
    let is_port = |port: &str| digits(port) && port.parse::<u16>().is_ok_and(|port| port > 0);
    host && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
}

fn is_host(text: &str) -> bool {
    text.split('.').all(|part| {
        let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
    })
}

/// Returns true if the text matches `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`.
pub(super) fn is_component(text: &str) -> bool {
    let bytes = text.as_bytes();
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let Some((first, last)) = bytes.first().zip(bytes.last()) else { return false };
    if !word(*first) || !word(*last) {
        return false;
    }
    bytes.split(|b| word(*b)).all(|between| match between {
        [] | [b'.' | b'_'] | [b'_', b'_'] => true,
        other => other.iter().all(|b| *b == b'-'),
    })
}

fn is_tag(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    (1..=TAG_MAX).contains(&text.len()) && text.bytes().all(inner) && !text.starts_with(['.', '-'])
}

fn file(text: &str) -> Result<(PathBuf, Option<String>), BadReference> {
    let (path, name) = match text.split_once(':') {
        Some((path, name)) => (path, Some(name)),
        None => (text, None),
    };
    let mut faults = Vec::new();
    let safe = path.starts_with('/') && path.len() < PATH_MAX && !path.contains(['\0', '\n']);
    if !safe || path.split('/').any(|part| part == "." || part == "..") {
        faults.push(Fault::Path(printable(path, 80)));
    }
    let inner = |name: &&str| (1..=INNER_MAX).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic());
    if let Some(name) = name.filter(|name| !inner(name)) {
        faults.push(Fault::Inner(printable(name, 80)));
    }
    if faults.is_empty() { Ok((path.into(), name.map(str::to_owned))) } else { Err(BadReference(faults)) }
}

#[cfg(test)]
mod tests;
