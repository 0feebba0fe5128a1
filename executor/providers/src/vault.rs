//! Implements the `vault` provider, which uses the HTTP API of HashiCorp Vault and OpenBao.
//!
//! A path below a mount of the KV engine version 2 (`kv_mounts`) is read as `MOUNT/data/REST`. Any other path is read
//! unchanged: such a path belongs to version 1 of KV, or to an engine that creates credentials with a lease, which the
//! provider renews. The provider logs in on first use, renews its token, and logs in again when the token has expired
//! or is refused. With `auth = "jwt"` each workload has its own login and its own session. The session is revoked when
//! the workload has ended. Redirects are not followed, so that a token is never sent to another host. If the server
//! refuses a request, the error contains only the status, because the server's message might repeat parts of the
//! request.

mod answer;
mod session;
mod workloads;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use executor_core::reference::{REFERENCE_VALUE_MAX, SecretReference};
use executor_http::{Client, ClientCertificate, Destinations, HttpRequest, Origin, RequestBody};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use zeroize::Zeroizing;

use crate::config::{Auth, ProviderConfig};
use crate::vault_path::{self, encoded};
use crate::{ErrorKind, FetchError, FetchRequest, Fetched, Lease, Value, http};
use answer::{Document, document};
use session::{Caller, SessionSlot};
use workloads::Workloads;

/// API path of the metadata of the token with which a request is sent.
const LOOKUP: &str = "/v1/auth/token/lookup-self";
/// Name of the header that contains the token.
const TOKEN: HeaderName = HeaderName::from_static("x-vault-token");
const NAMESPACE: HeaderName = HeaderName::from_static("x-vault-namespace");
/// Header that is required by a Vault agent which forwards requests to the server. The header prevents web pages in a
/// browser from sending such requests.
const REQUEST: HeaderName = HeaderName::from_static("x-vault-request");

/// Connection settings of a server, and its login.
#[derive(Debug)]
pub(crate) struct Vault {
    origin: Origin,
    namespace: Option<String>,
    kv_mounts: Vec<String>,
    ca_file: Option<PathBuf>,
    certificate: Option<ClientCertificate>,
    auth: Auth,
    auth_mount: String,
    auth_role: Option<String>,
    token_file: PathBuf,
    role_id_file: PathBuf,
    secret_id_file: Option<PathBuf>,
    patience: Duration,
    /// Session of executord itself.
    own: Arc<SessionSlot>,
    workloads: Workloads<SessionSlot>,
}

struct VaultRequest<'a> {
    method: Method,
    /// Path and query, from `/v1/` on.
    path: &'a str,
    /// Body in JSON, or empty.
    body: Zeroizing<Vec<u8>>,
}

impl<'a> VaultRequest<'a> {
    fn read(path: &'a str) -> Self {
        Self { method: Method::GET, path, body: Zeroizing::default() }
    }

    fn send(path: &'a str, body: &serde_json::Value) -> Self {
        Self { method: Method::POST, path, body: Zeroizing::new(body.to_string().into_bytes()) }
    }
}

impl Vault {
    pub(crate) fn new(config: &ProviderConfig) -> Self {
        let auth = config.auth.unwrap_or_default();
        let mount = match auth {
            Auth::AppRole => "approle",
            Auth::Jwt => "jwt",
            Auth::Token | Auth::Cert => "cert",
        };
        let pair = config.certificate_file.clone().zip(config.key_file.clone());
        Self {
            origin: config.origin().unwrap_or_else(|| Origin::new("", true)),
            namespace: config.namespace.clone(),
            kv_mounts: config.kv_mounts(),
            ca_file: config.ca_file.clone(),
            certificate: pair.map(|(certificate, key)| ClientCertificate { certificate, key }),
            auth,
            auth_mount: config.auth_mount.clone().unwrap_or_else(|| mount.to_owned()),
            auth_role: config.auth_role.clone(),
            token_file: config.token_file.clone().unwrap_or_default(),
            role_id_file: config.role_id_file.clone().unwrap_or_default(),
            secret_id_file: config.secret_id_file.clone(),
            patience: config.timeout(),
            own: Arc::default(),
            workloads: Workloads::default(),
        }
    }

    /// Fetches entries of one secret; all requests have the same path.
    pub(crate) async fn fetch(
        &self,
        requests: &[FetchRequest],
    ) -> Result<Vec<Result<Fetched, FetchError>>, FetchError> {
        let Some(first) = requests.first() else { return Ok(Vec::new()) };
        // Paths are checked at admission, too. This check is for requests that were admitted with another
        // configuration.
        if let Some(why) = vault_path::refusal(&self.kv_mounts, &first.reference.path) {
            return Err(FetchError::new(ErrorKind::Denied, format!("the path {why}")));
        }
        let caller = match &first.login {
            Some(login) if self.auth == Auth::Jwt => self.workloads.caller(login),
            None if self.auth == Auth::Jwt => return Err(FetchError::no_token()),
            _ => self.own(),
        };
        if let Some(lease) = first.lease.as_ref().filter(|lease| lease.renewable)
            && let Some(renewed) = self.renew(&caller, lease).await?
        {
            return Ok(requests.iter().map(|_| Ok(Fetched::Renewed(renewed.clone()))).collect());
        }
        let (path, is_kv) = self.path(&first.reference);
        let mut document = self.document(&caller, &VaultRequest::read(&path)).await?;
        let version = if is_kv { document.unwrap_version()? } else { String::new() };
        let lease = document.lease();
        let entry = |request: &FetchRequest| {
            let content = document.entry(&request.reference.key)?;
            if content.len() > REFERENCE_VALUE_MAX {
                return Err(FetchError::too_large());
            }
            Ok(Fetched::Value(Value { content, version: version.clone(), lease: lease.clone() }))
        };
        Ok(requests.iter().map(entry).collect())
    }

    /// Returns executord itself as the caller.
    fn own(&self) -> Caller {
        Caller { session: Arc::clone(&self.own), login: None }
    }

    /// Returns the path and query for a reference, and true if the path belongs to version 2 of KV.
    fn path(&self, reference: &SecretReference) -> (String, bool) {
        match vault_path::below(&self.kv_mounts, &reference.path) {
            Some((mount, rest)) => {
                let query = if reference.version.is_empty() {
                    String::new()
                } else {
                    format!("?version={}", reference.version)
                };
                (format!("/v1/{}/data/{}{query}", encoded(mount), encoded(rest)), true)
            }
            None => (format!("/v1/{}", encoded(&reference.path)), false),
        }
    }

    /// Renews a lease. Returns `None` if the server no longer renews the lease, so that a new secret is needed.
    async fn renew(&self, caller: &Caller, lease: &Lease) -> Result<Option<Lease>, FetchError> {
        let asked = serde_json::json!({ "lease_id": lease.id });
        let question = VaultRequest::send("/v1/sys/leases/renew", &asked);
        let renewed = match self.document(caller, &question).await {
            Ok(document) => document.lease(),
            Err(error) if error.kind == ErrorKind::Unavailable => return Err(error),
            Err(_) => None,
        };
        // Near the maximum lifetime of a lease, each renewal is shorter than the last, so request a new secret instead.
        let before = lease.ends_at.saturating_sub(lease.renew_at);
        Ok(renewed.filter(|new| new.ends_at.saturating_sub(crate::now_seconds()) > before.min(60)))
    }

    /// Sends a request with a token. If the server refuses the token, replaces the token once and repeats the request.
    async fn document(&self, caller: &Caller, question: &VaultRequest<'_>) -> Result<Document, FetchError> {
        let session = self.session(caller).await?;
        match self.send(&session.client, Some(&session.token), question).await {
            Err(error) if error.kind == ErrorKind::Denied => {
                // A valid token lacks the permission, and a new token would lack the permission, too.
                let looked_up = self.send(&session.client, Some(&session.token), &VaultRequest::read(LOOKUP)).await;
                match looked_up {
                    Ok(_) => return Err(error),
                    Err(unanswered) if unanswered.kind == ErrorKind::Unavailable => return Err(unanswered),
                    Err(_) => {}
                }
                let renewed = self.replace(caller, &session).await?;
                self.send(&renewed.client, Some(&renewed.token), question).await
            }
            Err(error) if error.kind == ErrorKind::Unavailable => {
                self.reconnect(caller, &session).await;
                Err(error)
            }
            answered => answered,
        }
    }

    /// Sends one request, with the token if one is given, and parses the response.
    async fn send(
        &self,
        client: &Client,
        token: Option<&HeaderValue>,
        question: &VaultRequest<'_>,
    ) -> Result<Document, FetchError> {
        let mut headers = vec![(REQUEST, HeaderValue::from_static("true"))];
        headers.extend(token.map(|token| (TOKEN, token.clone())));
        if let Some(namespace) = &self.namespace {
            let why = "the namespace contains characters that an HTTP header cannot carry";
            let value = HeaderValue::from_str(namespace).map_err(|_| FetchError::unavailable(why))?;
            headers.push((NAMESPACE, value));
        }
        if !question.body.is_empty() {
            headers.push((CONTENT_TYPE, HeaderValue::from_static("application/json")));
        }
        let request = HttpRequest {
            method: question.method.clone(),
            origin: &self.origin,
            path: question.path,
            headers,
            body: RequestBody::Full(Bytes::copy_from_slice(&question.body)),
            destinations: Destinations::Any,
        };
        let answer = client.ask(request).await.map_err(|error| http::unavailable(&self.origin, error))?;
        let status = answer.status;
        match status {
            status if status.is_success() => document(&http::body(&self.origin, answer).await?),
            // The response for a deleted version has metadata but no secret.
            StatusCode::NOT_FOUND => {
                let gone = http::body(&self.origin, answer).await.ok().and_then(|body| document(&body).ok()?.gone());
                Err(gone.map_or_else(
                    || self.refused(status),
                    |gone| FetchError::new(ErrorKind::NotFound, format!("{}: {gone} (404)", self.origin)),
                ))
            }
            status => Err(self.refused(status)),
        }
    }

    fn refused(&self, status: StatusCode) -> FetchError {
        let origin = &self.origin;
        match status {
            StatusCode::NOT_FOUND => FetchError::new(ErrorKind::NotFound, format!("{origin} has no such secret (404)")),
            StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => {
                FetchError::new(ErrorKind::Denied, format!("{origin} denies access ({})", status.as_u16()))
            }
            status if status.is_redirection() => {
                let why = format!(
                    "{origin} redirects to another address ({}); configure the address of the active server",
                    status.as_u16()
                );
                FetchError::unavailable(why)
            }
            StatusCode::BAD_REQUEST => {
                FetchError::new(ErrorKind::Unsuitable, format!("{origin} rejects the request (400)"))
            }
            status => FetchError::unavailable(format!("{origin} responded with status {status}")),
        }
    }
}
