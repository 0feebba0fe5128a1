//! Logs in at Vault, and renews tokens.

use std::sync::Arc;
use std::time::Duration;

use executor_http::Client;
use hyper::header::HeaderValue;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::answer::Login;
use super::workloads;
use super::{LOOKUP, Vault, VaultRequest};
use crate::config::Auth;
use crate::{ErrorKind, FetchError, files};

/// Interval at which a background task checks if the token must be renewed.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The current session of one caller, if there is one.
pub(super) type SessionSlot = tokio::sync::Mutex<Option<Arc<Session>>>;
pub(super) type Caller = workloads::Caller<SessionSlot>;

/// A session at the server: a valid token and the client that uses it.
pub(super) struct Session {
    /// Client with the certificates that were loaded at the login.
    pub(super) client: Arc<Client>,
    pub(super) token: HeaderValue,
    life: Option<Life>,
}

/// Lifetime of a token that expires.
#[derive(Clone, Copy)]
struct Life {
    ends: Instant,
    renew_at: Instant,
    renewable: bool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[REDACTED]")
    }
}

impl Session {
    fn new(client: Arc<Client>, token: &str, seconds: u64, renewable: bool) -> Result<Self, FetchError> {
        let header = HeaderValue::from_str(token);
        let why = "the token contains characters that an HTTP header cannot carry";
        let mut token = header.map_err(|_| FetchError::new(ErrorKind::Denied, why))?;
        token.set_sensitive(true);
        let now = Instant::now();
        let life = (seconds > 0).then(|| Life {
            ends: now + Duration::from_secs(seconds),
            renew_at: now + Duration::from_secs(seconds) * 2 / 3,
            renewable,
        });
        Ok(Self { client, token, life })
    }

    /// Returns the same session with another client.
    fn with_client(&self, client: Arc<Client>) -> Self {
        Self { client, token: self.token.clone(), life: self.life }
    }

    fn has_ended(&self) -> bool {
        self.life.is_some_and(|life| life.ends <= Instant::now())
    }

    fn is_due(&self) -> bool {
        self.life.is_some_and(|life| life.renew_at <= Instant::now())
    }
}

impl Vault {
    /// Returns a valid token: the current token, which may have been renewed, or a new token after another login. If
    /// the future is dropped, the current token is kept.
    pub(super) async fn session(&self, caller: &Caller) -> Result<Arc<Session>, FetchError> {
        let mut present = caller.session.lock().await;
        let current = present.clone().filter(|session| !session.has_ended());
        if let Some(session) = current.as_ref().filter(|session| !session.is_due()) {
            return Ok(Arc::clone(session));
        }
        if let Some(session) = current.as_ref().filter(|session| session.life.is_some_and(|life| life.renewable)) {
            match self.renewed(session).await {
                Ok(renewed) => return Ok(Arc::clone(present.insert(Arc::new(renewed)))),
                // The old token remains usable while the server does not respond.
                Err(error) if error.kind == ErrorKind::Unavailable => {
                    *present = Some(Arc::new(session.with_client(self.client())));
                    return Err(error);
                }
                Err(_) => {}
            }
        }
        match (self.log_in(caller).await, current) {
            (Ok(session), _) => Ok(Arc::clone(present.insert(Arc::new(session)))),
            // A token that cannot be renewed is valid until it expires.
            (Err(_), Some(session)) => Ok(session),
            (Err(error), None) => Err(error),
        }
    }

    /// Logs in again if `refused` has the current token. Otherwise returns the current token.
    pub(super) async fn replace(&self, caller: &Caller, refused: &Session) -> Result<Arc<Session>, FetchError> {
        let mut present = caller.session.lock().await;
        if let Some(session) = present.as_ref().filter(|session| session.token != refused.token) {
            return Ok(Arc::clone(session));
        }
        *present = None;
        Ok(Arc::clone(present.insert(Arc::new(self.log_in(caller).await?))))
    }

    /// Renews tokens before they expire, and revokes the tokens of workloads that no longer exist. Never returns.
    pub(crate) async fn run_renewal(&self) {
        let (mut ended, mut is_delayed) = (Vec::new(), false);
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            self.renew_due().await;
            ended.extend(self.workloads.take_ended());
            let revoked = self.revoke_all(&mut ended).await;
            if let (Err(error), false) = (&revoked, is_delayed) {
                tracing::warn!(server = %self.origin, "cannot revoke the tokens of completed containers, trying again later: {error}");
            }
            is_delayed = revoked.is_err();
        }
    }

    /// Renews the tokens that are due. Stops after two failures in succession, because the server does not respond.
    async fn renew_due(&self) {
        let mut failures = 0;
        let own = [(None, Arc::clone(&self.own))];
        let workloads = self.workloads.all().into_iter().map(|(login, session)| (Some(login), session));
        for (login, session) in own.into_iter().chain(workloads) {
            // A fetch that holds the session renews the token itself.
            let is_due = session.try_lock().is_ok_and(|session| session.as_ref().is_some_and(|one| one.is_due()));
            if !is_due {
                continue;
            }
            let login = match login.map(|login| login.upgrade()) {
                Some(None) => continue, // the workload has exited
                login => login.flatten(),
            };
            let caller = Caller { session, login };
            let renewed = tokio::time::timeout(self.patience * 2, self.session(&caller)).await;
            let unanswered = || FetchError::unavailable("the server does not respond");
            let Err(error) = renewed.unwrap_or_else(|_| Err(unanswered())) else {
                failures = 0;
                continue;
            };
            tracing::warn!(server = %self.origin, "cannot renew the token of a secret provider: {error}");
            failures += u32::from(error.kind == ErrorKind::Unavailable);
            if failures == 2 {
                return;
            }
        }
    }

    /// Revokes the tokens of sessions, and removes these sessions from the list. If the server is unavailable, keeps
    /// the remaining sessions and returns the error.
    async fn revoke_all(&self, ended: &mut Vec<Arc<SessionSlot>>) -> Result<(), FetchError> {
        while let Some(session) = ended.last() {
            match self.revoke(session).await {
                Err(error) if error.kind == ErrorKind::Unavailable => return Err(error),
                Err(error) => {
                    tracing::warn!(server = %self.origin, "cannot revoke the token of a completed container: {error}");
                }
                Ok(()) => {}
            }
            ended.pop();
        }
        Ok(())
    }

    /// Revokes the token of a session, and with it all leases of the token.
    async fn revoke(&self, session: &SessionSlot) -> Result<(), FetchError> {
        let session = session.lock().await.clone().filter(|session| !session.has_ended());
        let Some(session) = session else { return Ok(()) };
        let question = VaultRequest::send("/v1/auth/token/revoke-self", &serde_json::json!({}));
        let client = self.client();
        let revoked = tokio::time::timeout(self.patience, self.send(&client, Some(&session.token), &question));
        revoked
            .await
            .map_or_else(|_| Err(FetchError::unavailable("the server does not respond")), |answer| answer.map(drop))
    }

    async fn renewed(&self, session: &Session) -> Result<Session, FetchError> {
        let question = VaultRequest::send("/v1/auth/token/renew-self", &serde_json::json!({}));
        let mut answer = self.send(&session.client, Some(&session.token), &question).await?;
        let login =
            answer.login().ok_or_else(|| FetchError::unavailable("the response to a token renewal has no token"))?;
        // If a token near its maximum lifetime is no longer extended, log in again.
        if login.lease_duration < 10 {
            return Err(FetchError::new(ErrorKind::Denied, "the token cannot be renewed any longer"));
        }
        let mut next = Session::new(Arc::clone(&session.client), "", login.lease_duration, login.renewable)?;
        next.token = session.token.clone();
        Ok(next)
    }

    /// Replaces the client of a session after a failed request, so that the next connection uses replaced certificates.
    pub(super) async fn reconnect(&self, caller: &Caller, failed: &Arc<Session>) {
        let mut present = caller.session.lock().await;
        if let Some(session) = present.as_ref().filter(|session| Arc::ptr_eq(session, failed)) {
            *present = Some(Arc::new(session.with_client(self.client())));
        }
    }

    /// Creates a client, which reads the certificates when it connects.
    fn client(&self) -> Arc<Client> {
        let least = 1;
        Arc::new(match &self.certificate {
            None => Client::new(self.ca_file.clone(), self.patience, least),
            Some(pair) => Client::with_certificate(self.ca_file.clone(), pair.clone(), self.patience, least),
        })
    }

    async fn log_in(&self, caller: &Caller) -> Result<Session, FetchError> {
        let client = self.client();
        let mount = super::encoded(&self.auth_mount);
        match self.auth {
            Auth::Token => self.take_token(client).await,
            Auth::AppRole => {
                let role_id = files::credential(&self.role_id_file)?;
                let secret_id = self.secret_id_file.as_deref().map(files::credential).transpose()?.unwrap_or_default();
                let body = Body::json(&[("role_id", &role_id), ("secret_id", &secret_id)]);
                self.logged_in(client, &format!("/v1/auth/{mount}/login"), body).await
            }
            Auth::Cert => {
                let name = self.auth_role.as_deref().map(|role| ("name", role));
                self.logged_in(client, &format!("/v1/auth/{mount}/login"), Body::json(name.as_slice())).await
            }
            Auth::Jwt => {
                let login = caller.login.as_ref().ok_or_else(FetchError::no_token)?;
                let default = self.auth_role.as_deref().unwrap_or_default();
                let role = if login.role.is_empty() { default } else { &login.role };
                let token = login.token();
                let fields = [("jwt", &***token), ("role", role)];
                let fields = if role.is_empty() { &fields[..1] } else { &fields[..] };
                let path = format!("/v1/auth/{mount}/login");
                self.logged_in(client, &path, Body::json(fields)).await.map_err(|error| match error.kind {
                    ErrorKind::Denied => {
                        let why = format!("{} with the workload's token and role {role:?}", error.why);
                        FetchError { why, ..error }
                    }
                    _ => error,
                })
            }
        }
    }

    /// Reads the token from its file and requests the token's lifetime from the server.
    async fn take_token(&self, client: Arc<Client>) -> Result<Session, FetchError> {
        let token = files::credential(&self.token_file)?;
        let shown = self.token_file.display();
        if token.is_empty() {
            return Err(FetchError::new(ErrorKind::Denied, format!("{shown} is empty")));
        }
        let bare = Session::new(Arc::clone(&client), &token, 0, false)?;
        let reported = self.send(&client, Some(&bare.token), &VaultRequest::read(LOOKUP)).await;
        match reported {
            Ok(answer) => {
                let (ttl, renewable) = answer.token().unwrap_or_default();
                Session::new(client, &token, ttl, renewable)
            }
            Err(error) if error.kind == ErrorKind::Denied => Err(FetchError::new(
                ErrorKind::Denied,
                format!("{} rejects the token in the file {shown} (403)", self.origin),
            )),
            Err(error) => Err(error),
        }
    }

    async fn logged_in(
        &self,
        client: Arc<Client>,
        path: &str,
        body: Zeroizing<Vec<u8>>,
    ) -> Result<Session, FetchError> {
        let question = VaultRequest { method: hyper::Method::POST, path, body };
        let mut answer = self.send(&client, None, &question).await.map_err(|error| match error.kind {
            ErrorKind::Unavailable => error,
            _ => FetchError::new(
                ErrorKind::Denied,
                format!("{} rejected the login at auth/{}", self.origin, self.auth_mount),
            ),
        })?;
        let login: Login =
            answer.login().ok_or_else(|| FetchError::unavailable("the response to a login has no token"))?;
        Session::new(client, &login.client_token, login.lease_duration, login.renewable)
    }
}

/// Body of a login.
struct Body;

impl Body {
    /// Creates a JSON object of strings, in memory that is wiped on drop and never reallocated.
    fn json(fields: &[(&str, &str)]) -> Zeroizing<Vec<u8>> {
        let room: usize = fields.iter().map(|(name, value)| name.len() + 6 * value.len() + 8).sum();
        let mut body = Zeroizing::new(Vec::with_capacity(room + 2));
        body.push(b'{');
        for (index, (name, value)) in fields.iter().enumerate() {
            if index > 0 {
                body.push(b',');
            }
            // Writing to a vector cannot fail.
            let _ = serde_json::to_writer(&mut *body, name);
            body.push(b':');
            let _ = serde_json::to_writer(&mut *body, value);
        }
        body.push(b'}');
        body
    }
}
