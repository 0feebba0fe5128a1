//! Authenticates to a registry: converts its challenge to an `Authorization` header.
//!
//! A password is sent only to its registry or to the token service that the registry names. The connection is encrypted
//! unless the registry itself is accessed without encryption. The token service must not have a nearer address than the
//! registry (such as a loopback address if the registry is public). A token is requested only for the repository that
//! is read, even if the registry suggests another scope.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use executor_registry_auth::{Credentials, Secret};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, StatusCode};
use serde::Deserialize;
use zeroize::{Zeroize as _, Zeroizing};

use super::challenge::{self, Challenge};
use super::{Registry, read_short_body};
use crate::error::ImageError;
use executor_http::{Answer, Destinations, HttpRequest, Origin, RequestBody};

/// Maximum size of a token service's response, in bytes.
const ANSWER_MAX: usize = 64 << 10;

/// Value of the `Authorization` header.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Authorization(HeaderValue);

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorization([REDACTED])")
    }
}

impl Authorization {
    pub(super) fn bearer(token: &Secret) -> Option<Self> {
        Self::from_text(&Zeroizing::new(format!("Bearer {}", token.as_str())))
    }

    fn basic(username: &str, password: &Secret) -> Option<Self> {
        let pair = Zeroizing::new(format!("{username}:{}", password.as_str()));
        let encoded = Zeroizing::new(STANDARD.encode(pair.as_bytes()));
        Self::from_text(&Zeroizing::new(format!("Basic {}", encoded.as_str())))
    }

    fn from_text(text: &str) -> Option<Self> {
        let mut value = HeaderValue::from_str(text).ok()?;
        value.set_sensitive(true);
        Some(Self(value))
    }

    pub(super) fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

#[derive(Deserialize)]
struct Token {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

impl Registry {
    /// Handles a 401 of the registry: obtains an authorization for the next request. `shown` is the authorization that
    /// the registry refused.
    pub(super) async fn authenticate(
        &self,
        answer: &Answer,
        shown: Option<Authorization>,
        what: &str,
    ) -> Result<(), ImageError> {
        let unauthorized = |why| self.unauthorized(what, why);
        let mut held = self.authorization.lock().await;
        if *held != shown {
            return Ok(()); // another request was faster
        }
        let challenge = challenge::best(&answer.headers)
            .ok_or_else(|| unauthorized("the 401 response offers neither Basic nor Bearer authentication"))?;
        let new = match (&challenge, self.credentials()) {
            (Challenge::Bearer { realm, service }, _) => self.token(answer, realm, service, what).await?,
            (Challenge::Basic, Some(Credentials::Basic { username, password })) => {
                Authorization::basic(username, password)
            }
            (Challenge::Basic, _) => {
                return Err(unauthorized(
                    "the registry requires a user name and a password, but the credentials are a token",
                ));
            }
        };
        let new =
            new.ok_or_else(|| unauthorized("the credentials contain characters that an HTTP header cannot carry"))?;
        if Some(&new) == shown.as_ref() {
            return Err(unauthorized("the registry rejects the credentials (401)"));
        }
        *held = Some(new);
        Ok(())
    }

    async fn token(
        &self,
        answer: &Answer,
        realm: &str,
        service: &str,
        what: &str,
    ) -> Result<Option<Authorization>, ImageError> {
        let refused = |to: String, why| ImageError::Redirect { what: format!("the token for {what}"), to, why };
        let (origin, mut path) = Origin::parse(realm, &self.origin).ok_or_else(|| {
            refused("an invalid address".to_owned(), "the realm is not an absolute http or https URL")
        })?;
        if self.origin.secure && !origin.secure {
            return Err(refused(origin.to_string(), "the token service uses http, but the registry uses https"));
        }
        let named_by = (origin != self.origin).then_some(answer.reach);
        let scope = format!("repository:{}:pull", self.repository);
        let mut headers = vec![(ACCEPT, HeaderValue::from_static("application/json"))];
        let (mut method, mut body) = (Method::GET, Vec::new());
        if let Some(Credentials::IdentityToken(token)) = self.credentials() {
            method = Method::POST;
            headers.push((CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded")));
            let token = Zeroizing::new(escaped(token));
            body = format!(
                "grant_type=refresh_token&client_id=executor&service={}&scope={}&refresh_token={}",
                escaped(service),
                escaped(&scope),
                token.as_str()
            )
            .into_bytes();
        } else {
            let joint = if path.contains('?') { '&' } else { '?' };
            path = format!("{path}{joint}service={}&scope={}", escaped(service), escaped(&scope));
            if let Some(Credentials::Basic { username, password }) = self.credentials() {
                headers.extend(Authorization::basic(username, password).map(|basic| (AUTHORIZATION, basic.header())));
            }
        }
        let ask = HttpRequest {
            method,
            origin: &origin,
            path: &path,
            headers,
            body: RequestBody::Full(body.into()),
            destinations: named_by.map_or_else(|| self.destinations(), Destinations::NamedBy),
        };
        let mut answer = self.client.ask(ask).await.map_err(|error| self.failed(what, &origin, error))?;
        match answer.status {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(self.unauthorized(what, "the token service rejects the credentials"));
            }
            // A token service responds with this status to an invalid refresh token (RFC 6749, 5.2).
            StatusCode::BAD_REQUEST if self.identity.is_some() => {
                return Err(self.unauthorized(what, "the token service rejects the credentials"));
            }
            status => {
                let (what, origin) = (format!("the token for {what}"), origin.to_string());
                return Err(ImageError::Status { what, origin, status: status.as_u16() });
            }
        }
        let json = read_short_body(&mut answer.body, ANSWER_MAX).await.map(Zeroizing::new);
        let token = json.and_then(|json| serde_json::from_slice::<Token>(&json).ok());
        let missing =
            || ImageError::Malformed { what: format!("the token for {what}"), why: "the response has no token".into() };
        let mut token = token.ok_or_else(missing)?;
        let one = Zeroizing::new(std::mem::take(match token.token.is_empty() {
            true => &mut token.access_token,
            false => &mut token.token,
        }));
        token.token.zeroize();
        token.access_token.zeroize();
        if one.is_empty() { Err(missing()) } else { Ok(Authorization::bearer(&one)) }
    }
}

/// Percent-encodes a value for a query or a form.
fn escaped(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~');
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped_and_hidden_in_debug() {
        assert_eq!(escaped("repository:a/b:pull é&="), "repository%3Aa%2Fb%3Apull%20%C3%A9%26%3D");
        let authorization = Authorization::basic("u", &Zeroizing::new("canary-1".into())).unwrap();
        assert_eq!(authorization.header(), "Basic dTpjYW5hcnktMQ==");
        assert!(!format!("{authorization:?} {:?}", authorization.header()).contains("dTpj"));
        assert_eq!(Authorization::bearer(&Zeroizing::new("a\nb".into())), None);
    }
}
