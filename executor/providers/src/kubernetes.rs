//! Implements the `kubernetes` provider, which reads Secrets of a cluster from its API server.
//!
//! The path of a reference is `NAMESPACE/NAME`, and the key names an entry of `data`. The token and the certificates
//! are read again for each fetch, because a cluster replaces them. Redirects are not followed. If the server refuses a
//! request, the error contains only the status.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use executor_core::reference::{REFERENCE_VALUE_MAX, REFERENCE_VERSION_MAX};
use executor_http::{Client, ClientCertificate, Destinations, HttpRequest, Origin, RequestBody};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, HeaderValue};
use hyper::{Method, StatusCode};
use serde::Deserialize;
use zeroize::{Zeroize as _, Zeroizing};

use crate::config::{Auth, ProviderConfig};
use crate::kubernetes_path::place;
use crate::{ErrorKind, FetchError, FetchRequest, Fetched, Value, files, http};

/// Address of an API server, and credentials.
#[derive(Debug)]
pub(crate) struct Kubernetes {
    origin: Origin,
    ca_file: Option<PathBuf>,
    certificate: Option<ClientCertificate>,
    token_file: Option<PathBuf>,
    /// True if requests use the token of the container's workload instead of the provider's own credentials.
    uses_workload_token: bool,
    patience: Duration,
}

/// A Secret. Its values are overwritten on drop.
#[derive(Deserialize)]
struct Secret {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    data: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.data.iter_mut().flat_map(BTreeMap::values_mut).for_each(|value| value.zeroize());
    }
}

impl Kubernetes {
    pub(crate) fn new(config: &ProviderConfig) -> Self {
        let pair = config.certificate_file.clone().zip(config.key_file.clone());
        Self {
            origin: config.origin().unwrap_or_else(|| Origin::new("", true)),
            ca_file: config.ca_file.clone(),
            certificate: pair.map(|(certificate, key)| ClientCertificate { certificate, key }),
            token_file: config.token_file.clone().filter(|_| config.auth.unwrap_or_default() == Auth::Token),
            uses_workload_token: config.uses_workload_token(),
            patience: config.timeout(),
        }
    }

    /// Fetches entries of one Secret; all requests have the same path.
    pub(crate) async fn fetch(
        &self,
        requests: &[FetchRequest],
    ) -> Result<Vec<Result<Fetched, FetchError>>, FetchError> {
        let Some(first) = requests.first() else { return Ok(Vec::new()) };
        // Paths are checked at admission, too.
        let Some((namespace, name)) = place(&first.reference.path) else {
            return Err(FetchError::new(ErrorKind::NotFound, "the path is not NAMESPACE/NAME"));
        };
        let token = match (&self.token_file, &first.login) {
            (_, Some(login)) if self.uses_workload_token => Some(login.token()),
            (_, None) if self.uses_workload_token => return Err(FetchError::no_token()),
            (Some(file), _) => Some(Arc::new(files::credential(file)?)),
            (None, _) => None,
        };
        let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
        let secret = self.read(&path, token.as_deref()).await?;
        Ok(requests.iter().map(|request| secret.value(&request.reference.key).map(Fetched::Value)).collect())
    }

    async fn read(&self, path: &str, token: Option<&Zeroizing<String>>) -> Result<Secret, FetchError> {
        let least = 1;
        let client = match &self.certificate {
            None => Client::new(self.ca_file.clone(), self.patience, least),
            Some(pair) => Client::with_certificate(self.ca_file.clone(), pair.clone(), self.patience, least),
        };
        let mut headers = vec![(ACCEPT, HeaderValue::from_static("application/json"))];
        if let Some(token) = token {
            let bearer = Zeroizing::new(format!("Bearer {}", token.as_str()));
            let header = HeaderValue::from_str(&bearer);
            let why = "the token contains characters that an HTTP header cannot carry";
            let mut header = header.map_err(|_| FetchError::new(ErrorKind::Denied, why))?;
            header.set_sensitive(true);
            headers.push((AUTHORIZATION, header));
        }
        let request = HttpRequest {
            method: Method::GET,
            origin: &self.origin,
            path,
            headers,
            body: RequestBody::Full(Bytes::new()),
            destinations: Destinations::Any,
        };
        let answer = client.ask(request).await.map_err(|error| http::unavailable(&self.origin, error))?;
        match answer.status {
            status if status.is_success() => parse(&http::body(&self.origin, answer).await?),
            status => Err(self.refused(status)),
        }
    }

    fn refused(&self, status: StatusCode) -> FetchError {
        let origin = &self.origin;
        match status {
            StatusCode::NOT_FOUND => FetchError::new(ErrorKind::NotFound, format!("{origin} has no such Secret (404)")),
            StatusCode::FORBIDDEN => {
                let why = format!("{origin} denies access (403): a role must allow `get` of this Secret");
                FetchError::new(ErrorKind::Denied, why)
            }
            StatusCode::UNAUTHORIZED => {
                FetchError::new(ErrorKind::Denied, format!("{origin} does not accept the credentials (401)"))
            }
            status => FetchError::unavailable(format!("{origin} responded with status {status}")),
        }
    }
}

/// Parses a response. The error contains no details, because they could be part of a value.
fn parse(body: &[u8]) -> Result<Secret, FetchError> {
    let secret: Option<Secret> = serde_json::from_slice(body).ok();
    let secret = secret.filter(|secret| secret.kind == "Secret");
    secret.ok_or_else(|| FetchError::unavailable("the response is not a Kubernetes Secret"))
}

impl Secret {
    fn value(&self, key: &str) -> Result<Value, FetchError> {
        let encoded = self.data.as_ref().and_then(|data| data.get(key));
        let missing = || FetchError::new(ErrorKind::NotFound, "the Secret has no such key");
        let encoded = encoded.ok_or_else(missing)?;
        let content = STANDARD.decode(encoded).map(Zeroizing::new);
        let content =
            content.map_err(|_| FetchError::new(ErrorKind::Unsuitable, "the entry of the Secret is not base64"))?;
        if content.len() > REFERENCE_VALUE_MAX {
            return Err(FetchError::too_large());
        }
        let version = &self.metadata.resource_version;
        let is_plain = version.len() <= REFERENCE_VERSION_MAX && version.bytes().all(|b| b.is_ascii_alphanumeric());
        Ok(Value { content, version: if is_plain { version.clone() } else { String::new() }, lease: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_decoded() {
        let secret =
            parse(br#"{"kind":"Secret","metadata":{"resourceVersion":"7"},"data":{"a":"AP8=","b":"%"}}"#).unwrap();
        let value = secret.value("a").unwrap();
        assert_eq!((&value.content[..], &*value.version), (&[0, 0xff][..], "7"));
        assert_eq!(secret.value("b").unwrap_err().kind, ErrorKind::Unsuitable);
        assert_eq!(secret.value("c").unwrap_err().kind, ErrorKind::NotFound);
        let empty = parse(br#"{"kind":"Secret","data":null}"#).unwrap();
        assert_eq!(empty.value("a").unwrap_err().kind, ErrorKind::NotFound);
        for text in ["", "{}", "[]", r#"{"kind":"Status"}"#, r#"{"kind":"Secret","data":{"hunter2":5}}"#, "hunter2"] {
            let error = parse(text.as_bytes()).map(drop).unwrap_err();
            assert!(error.kind == ErrorKind::Unavailable && !error.why.contains("hunter2"), "{error}");
        }
        let large = STANDARD.encode(vec![b'x'; REFERENCE_VALUE_MAX + 1]);
        let large = parse(format!(r#"{{"kind":"Secret","data":{{"a":"{large}"}}}}"#).as_bytes()).unwrap();
        assert_eq!(large.value("a").unwrap_err().kind, ErrorKind::Unsuitable);
    }
}
