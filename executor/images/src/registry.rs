//! Fetches documents and blobs of one repository from a registry (distribution specification, pull).
//!
//! The input is a repository and the credentials for its registry; the output is responses to GET. Responses are not
//! trusted: this module limits sizes and checks redirects, and the caller computes digests. Credentials are sent only
//! to the registry and to the token service that the registry names, and never to the target of a redirect.

mod auth;
pub(crate) mod blob;
mod challenge;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use executor_core::backoff::Backoff;
use executor_core::image::{DOCUMENT_MAX, Digest, ImagePolicy, ImageReference, Repository};
use executor_registry_auth::Credentials;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, LOCATION, RANGE,
};
use hyper::{Method, StatusCode};
use tokio::sync::Mutex;

use crate::error::ImageError;
use crate::hash;
use crate::manifest;
use auth::Authorization;
use executor_http::{
    Answer, Body, BodyError, Client, Destinations, HttpError, HttpRequest, Origin, Reach, RequestBody,
};

/// Maximum number of redirects per request.
const REDIRECTS_MAX: usize = 5;
/// Header that declares the digest of a document (distribution specification).
const CONTENT_DIGEST: &str = "docker-content-digest";
/// Docker Hub's host in image names, and the host of its registry.
const DOCKER_HUB: (&str, &str) = ("docker.io", "registry-1.docker.io");
/// Number of attempts to fetch a document before an error is returned.
const ATTEMPTS: u32 = 3;
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));

/// A repository in a registry, from which one image is fetched.
pub(crate) struct Registry {
    client: Arc<Client>,
    name: String,
    repository: String,
    origin: Origin,
    identity: Option<Identity>,
    authorization: Mutex<Option<Authorization>>,
    /// Reach (such as public or loopback) of the address that sent the registry's first response. If the registry's
    /// name later resolves to a non-public address with another reach, the connection is refused.
    reach: OnceLock<Reach>,
    /// Decides from which repositories manifests may be fetched.
    policy: ImagePolicy,
}

/// Credentials for a registry, and their source.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) credentials: Arc<Credentials>,
    /// The operator's file that contains the credentials; `None` if the credentials are from the request.
    pub(crate) file: Option<PathBuf>,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 80;
        match &*self.credentials {
            // Some registries accept a token as user name and password. The name is then as secret as the password.
            Credentials::Basic { username, password } if username != password.as_str() => {
                let shown: String = username.chars().take(SHOWN).collect();
                write!(f, "the user {shown:?}")?;
            }
            Credentials::Basic { .. } => f.write_str("the user")?,
            Credentials::IdentityToken(_) => f.write_str("the identity token")?,
            Credentials::RegistryToken(_) => f.write_str("the registry token")?,
        }
        match &self.file {
            None => f.write_str(" of the request"),
            Some(file) => write!(f, " of {}", file.display()),
        }
    }
}

/// An unmodified document, with the media type that the registry declares.
pub(crate) struct Document {
    pub(crate) bytes: Vec<u8>,
    pub(crate) content_type: String,
    /// Digest that the registry declares (`Docker-Content-Digest`), if any.
    pub(crate) declared: Option<String>,
}

impl Registry {
    pub(crate) fn new(
        client: Arc<Client>,
        repository: &Repository,
        insecure: bool,
        identity: Option<Identity>,
        policy: ImagePolicy,
    ) -> Self {
        let name = repository.registry();
        let host = if name == DOCKER_HUB.0 { DOCKER_HUB.1 } else { name };
        let authorization = match identity.as_ref().map(|identity| &*identity.credentials) {
            Some(Credentials::RegistryToken(token)) => Authorization::bearer(token),
            _ => None,
        };
        Self {
            client,
            name: name.to_owned(),
            repository: repository.path().to_owned(),
            origin: Origin::new(host, !insecure),
            identity,
            authorization: Mutex::new(authorization),
            reach: OnceLock::new(),
            policy,
        }
    }

    /// Fetches a manifest or index by tag or digest. If the registry declares a digest, the digest must match, because
    /// a cache or proxy may have returned another document.
    pub(crate) async fn manifest(&self, reference: &str, what: &str) -> Result<Document, ImageError> {
        let path = format!("/v2/{}/manifests/{reference}", self.repository);
        let document = self.document(&path, manifest::ACCEPTED, what).await?;
        if let Some(declared) = &document.declared {
            let digest: Digest = declared.trim().parse().map_err(|bad| ImageError::Malformed {
                what: format!("the header Docker-Content-Digest of {what}"),
                why: format!("a digest {bad}"),
            })?;
            hash::check_digest(&digest, &document.bytes, &format!("the manifest of {what} (Docker-Content-Digest)"))?;
        }
        Ok(document)
    }

    /// Fetches the index of the referrers of a digest (distribution specification 1.1). Returns
    /// [`ImageError::NotFound`] if the registry does not have this API or refuses access.
    pub(crate) async fn referrers(&self, digest: &Digest, what: &str) -> Result<Vec<u8>, ImageError> {
        let path = format!("/v2/{}/referrers/{digest}", self.repository);
        match self.document(&path, manifest::ACCEPTED, what).await {
            Ok(document) => Ok(document.bytes),
            Err(ImageError::Status { status: 400..=428, .. } | ImageError::Unauthorized { .. }) => {
                Err(ImageError::NotFound { what: what.to_owned() })
            }
            Err(error) => Err(error),
        }
    }

    /// Fetches a small blob: a configuration or a signature.
    pub(crate) async fn small_blob(&self, digest: &str, what: &str) -> Result<Document, ImageError> {
        self.document(&self.blob_path(digest), "*/*", what).await
    }

    /// Fetches a blob of at most `most` bytes into memory.
    pub(crate) async fn bounded_blob(&self, digest: &str, most: u64, what: &str) -> Result<Vec<u8>, ImageError> {
        Ok(self.bounded_document(&self.blob_path(digest), "*/*", most, what).await?.bytes)
    }

    fn blob_path(&self, digest: &str) -> String {
        format!("/v2/{}/blobs/{digest}", self.repository)
    }

    async fn document(&self, path: &str, accept: &'static str, what: &str) -> Result<Document, ImageError> {
        self.bounded_document(path, accept, DOCUMENT_MAX, what).await
    }

    async fn bounded_document(
        &self,
        path: &str,
        accept: &'static str,
        most: u64,
        what: &str,
    ) -> Result<Document, ImageError> {
        let mut backoff = BACKOFF;
        for _ in 1..ATTEMPTS {
            match self.document_once(path, accept, most, what).await {
                Err(error) if error.is_transient() => tokio::time::sleep(backoff.pause()).await,
                other => return other,
            }
        }
        self.document_once(path, accept, most, what).await
    }

    async fn document_once(
        &self,
        path: &str,
        accept: &'static str,
        most: u64,
        what: &str,
    ) -> Result<Document, ImageError> {
        let (mut answer, origin) = self.get(path, accept, None, what).await?;
        let declared = content_length(&answer);
        let too_large = |is| ImageError::TooLarge { what: what.to_owned(), is, most, unit: "bytes" };
        if let Some(declared) = declared.filter(|declared| *declared > most) {
            return Err(too_large(declared));
        }
        let content_type = answer.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let content_type = content_type.split(';').next().unwrap_or_default().trim().to_owned();
        let digest =
            answer.headers.get(CONTENT_DIGEST).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let mut bytes = Vec::new();
        loop {
            match answer.body.next().await {
                Ok(Some(data)) => bytes.extend_from_slice(&data),
                Ok(None) => return Ok(Document { bytes, content_type, declared: digest }),
                Err(BodyError::Ended) => {
                    let got = bytes.len() as u64;
                    let declared = declared.unwrap_or(got);
                    return Err(ImageError::Truncated { what: what.to_owned(), declared, got });
                }
                Err(BodyError::Slow { bytes, within }) => return Err(self.slow(what, &origin, bytes, within)),
            }
            if bytes.len() as u64 > most {
                return Err(too_large(bytes.len() as u64));
            }
        }
    }

    /// Returns the addresses at which the registry itself may be contacted.
    fn destinations(&self) -> Destinations<'static> {
        self.reach.get().map_or(Destinations::Any, |reach| Destinations::AnsweredAt(*reach))
    }

    /// Requests a path with the credentials and follows permitted redirects. Also returns the origin that sent the
    /// response.
    async fn get(
        &self,
        path: &str,
        accept: &'static str,
        from: Option<u64>,
        what: &str,
    ) -> Result<(Answer, Origin), ImageError> {
        let (mut origin, mut path) = (self.origin.clone(), path.to_owned());
        let mut named_by = None;
        let (mut redirects, mut introduced) = (0, false);
        loop {
            let known = origin == self.origin;
            let authorization = if known { self.authorization.lock().await.clone() } else { None };
            let mut headers = vec![
                (ACCEPT, HeaderValue::from_static(accept)),
                (ACCEPT_ENCODING, HeaderValue::from_static("identity")),
            ];
            if let Some(from) = from {
                headers
                    .push((RANGE, HeaderValue::from_str(&format!("bytes={from}-")).unwrap_or_else(|_| unreachable!())));
            }
            headers.extend(authorization.as_ref().map(|authorization| (AUTHORIZATION, authorization.header())));
            let ask = HttpRequest {
                method: Method::GET,
                origin: &origin,
                path: &path,
                headers,
                body: RequestBody::empty(),
                destinations: named_by.map_or_else(|| self.destinations(), Destinations::NamedBy),
            };
            let answer = self.client.ask(ask).await.map_err(|error| self.failed(what, &origin, error))?;
            if named_by.is_none() {
                let _ = self.reach.set(answer.reach);
            }
            match answer.status {
                StatusCode::OK | StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                    return Ok((answer, origin));
                }
                status if is_redirect(status) => {
                    redirects += 1;
                    (origin, path) = redirected(&answer, &origin, redirects, what)?;
                    self.check_redirect(accept, &origin, &path, what)?;
                    // A server named the next host. The next address must suit the reach of the first server that
                    // redirected.
                    named_by = named_by.or(Some(answer.reach));
                }
                StatusCode::UNAUTHORIZED if known && !introduced => {
                    introduced = true;
                    self.authenticate(&answer, authorization, what).await?;
                }
                // The target of a redirect gets no credentials, so its status is not a refusal of the credentials.
                StatusCode::UNAUTHORIZED if known => {
                    return Err(self.unauthorized(what, "the registry rejects the credentials (401)"));
                }
                StatusCode::FORBIDDEN if known => return Err(self.refused(what, "access denied (403)")),
                StatusCode::NOT_FOUND => return Err(ImageError::NotFound { what: what.to_owned() }),
                status => {
                    let (what, origin) = (what.to_owned(), origin.to_string());
                    return Err(ImageError::Status { what, origin, status: status.as_u16() });
                }
            }
        }
    }

    /// Checks the target of a redirect. Manifests define an image, so the policy must allow a redirect to another
    /// repository. A redirect within the same repository is allowed even if no pattern matches, because mirrors have no
    /// patterns. Blobs are verified by digest, so their redirects are not checked.
    fn check_redirect(&self, accept: &str, to: &Origin, path: &str, what: &str) -> Result<(), ImageError> {
        if accept == "*/*" || self.policy.may_fetch_all() {
            return Ok(());
        }
        // All paths of the registry API begin with this prefix. Other paths belong to another service.
        let allowed = match path.strip_prefix("/v2/") {
            Some(path) => self.repository_at(to, path).is_some_and(|other| {
                let same = (other.registry(), other.path()) == (&*self.name, &*self.repository);
                same || self.policy.may_fetch(&other).is_ok()
            }),
            None => *to == self.origin,
        };
        let refused = "the configuration does not allow the target repository (images.allow)";
        let reported = || ImageError::Redirect { what: what.to_owned(), to: to.to_string(), why: refused };
        if allowed { Ok(()) } else { Err(reported()) }
    }

    /// Returns the repository whose manifest is at a path of this origin.
    fn repository_at(&self, origin: &Origin, path: &str) -> Option<Repository> {
        let (repository, wanted) = path.rsplit_once("/manifests/")?;
        let registry = match () {
            () if *origin == self.origin => self.name.clone(),
            () if origin.host == DOCKER_HUB.1 => DOCKER_HUB.0.to_owned(),
            () => origin.authority(),
        };
        match format!("docker://{registry}/{repository}").parse() {
            Ok(ImageReference::Registry(repository, _)) if !wanted.contains(['/', '%']) => Some(repository),
            _ => None,
        }
    }

    /// Creates the error for a registry that does not accept the given credentials, or that requires credentials.
    fn unauthorized(&self, what: &str, why: &'static str) -> ImageError {
        match self.identity {
            Some(_) => self.refused(what, why),
            None => self.refused(what, "the registry requires credentials, and none were given"),
        }
    }

    /// Creates the error for a registry that refuses access.
    fn refused(&self, what: &str, why: &'static str) -> ImageError {
        let who = self.identity.as_ref().map_or_else(|| "a caller without credentials".to_owned(), ToString::to_string);
        ImageError::Unauthorized { registry: self.name.clone(), what: what.to_owned(), who, why }
    }

    fn credentials(&self) -> Option<&Credentials> {
        self.identity.as_ref().map(|identity| &*identity.credentials)
    }

    fn failed(&self, what: &str, origin: &Origin, error: HttpError) -> ImageError {
        match error {
            HttpError::Forbidden(why) => ImageError::Redirect { what: what.to_owned(), to: origin.to_string(), why },
            HttpError::Slow { bytes, within } => self.slow(what, origin, bytes, within),
            HttpError::Exhausted(error) => ImageError::io("connect to", origin.to_string(), error),
            HttpError::Untrusted(why) => {
                ImageError::Untrusted { what: what.to_owned(), origin: origin.to_string(), why }
            }
            HttpError::Broken(why) => ImageError::Connection { what: what.to_owned(), origin: origin.to_string(), why },
        }
    }

    fn slow(&self, what: &str, origin: &Origin, bytes: u64, within: Duration) -> ImageError {
        let (what, origin) = (what.to_owned(), origin.to_string());
        ImageError::TooSlow { what, origin, bytes, within, least: self.client.least() }
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Returns the target of a redirect if it is permitted.
fn redirected(answer: &Answer, from: &Origin, count: usize, what: &str) -> Result<(Origin, String), ImageError> {
    let refused = |to: String, why| Err(ImageError::Redirect { what: what.to_owned(), to, why });
    let location = answer.headers.get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let Some((to, path)) = Origin::parse(location, from) else {
        return refused(
            "an invalid address".to_owned(),
            "the Location header is not an absolute http or https URL, or contains a user name",
        );
    };
    match () {
        () if count > REDIRECTS_MAX => refused(to.to_string(), "too many redirects (at most 5)"),
        () if from.secure && !to.secure => {
            refused(to.to_string(), "the target uses http, but the redirecting server uses https")
        }
        () => Ok((to, path)),
    }
}

fn content_length(answer: &Answer) -> Option<u64> {
    answer.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reads a short body. Returns `None` if the body is longer than `most` bytes or incomplete.
async fn read_short_body(body: &mut Body, most: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(data) = body.next().await.ok()? {
        bytes.extend_from_slice(&data);
        if bytes.len() > most {
            return None;
        }
    }
    Some(bytes)
}
