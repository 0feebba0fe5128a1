//! Stores registered requests by their tokens.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

use crate::{Connect, Handler, Limits, Wanted};

/// Reason why a request cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    #[error("no stream is requested; request at least one of stdin, stdout and stderr")]
    NoStream,
    #[error("tty and stderr are requested; a terminal has no separate stderr")]
    TtyStderr,
    #[error("{0} requests wait for their clients; the maximum is {0}")]
    TooMany(usize),
    #[error("cannot read random bytes from the kernel: {0}")]
    Random(String),
}

/// Kind of a request, which is the part of the URL before the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Exec,
    Attach,
    PortForward,
}

impl Kind {
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portforward",
        }
    }
}

pub(crate) enum Request {
    Process { wanted: Wanted, handler: Box<dyn Handler> },
    Ports(Arc<dyn Connect>),
}

struct Entry {
    kind: Kind,
    owner: Arc<str>,
    until: Instant,
    request: Request,
}

pub(crate) struct Tokens {
    entries: Mutex<HashMap<String, Entry>>,
    limits: Limits,
}

impl Tokens {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { entries: Mutex::default(), limits }
    }

    pub(crate) fn register(&self, kind: Kind, owner: &Arc<str>, request: Request) -> Result<String, RegisterError> {
        if let Request::Process { wanted, .. } = &request {
            if !(wanted.stdin || wanted.stdout || wanted.stderr) {
                return Err(RegisterError::NoStream);
            }
            if wanted.tty && wanted.stderr {
                return Err(RegisterError::TtyStderr);
            }
        }
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|err| RegisterError::Random(err.to_string()))?;
        let token = hex::encode(random);
        let now = Instant::now();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|_, entry| entry.until > now);
        if entries.len() >= self.limits.waiting {
            return Err(RegisterError::TooMany(self.limits.waiting));
        }
        entries
            .insert(token.clone(), Entry { kind, owner: Arc::clone(owner), until: now + self.limits.token, request });
        Ok(token)
    }

    /// Deletes the requests of an owner, so that their tokens become invalid.
    pub(crate) fn revoke(&self, owner: &str) {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, entry| &*entry.owner != owner);
    }

    /// Deletes expired requests, because their handlers can hold arguments of commands.
    pub(crate) fn expire(&self) {
        let now = Instant::now();
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, entry| entry.until > now);
    }

    /// Returns the kind of a path if its token is valid.
    pub(crate) fn find(&self, path: &str) -> Option<Kind> {
        let (kind, token) = path.strip_prefix('/')?.split_once('/')?;
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.get(token).filter(|entry| entry.until > Instant::now() && entry.kind.path() == kind)?;
        Some(entry.kind)
    }

    /// Removes and returns the request of a path if its token is valid.
    pub(crate) fn take(&self, path: &str) -> Option<Request> {
        self.find(path)?;
        let (_, token) = path.rsplit_once('/')?;
        Some(self.entries.lock().unwrap_or_else(PoisonError::into_inner).remove(token)?.request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Outcome, Process};

    fn request(wanted: Wanted) -> Request {
        Request::Process { wanted, handler: Box::new(|_: Process| async { Outcome::Exited(0) }) }
    }

    fn owner() -> Arc<str> {
        Arc::from("a")
    }

    #[test]
    fn revoked_tokens_of_one_owner_fail() {
        let tokens = Tokens::new(Limits::default());
        let wanted = Wanted { stdout: true, ..Wanted::default() };
        let [revoked, other] = ["a", "b"].map(|owner| {
            let token = tokens.register(Kind::Exec, &Arc::from(owner), request(wanted)).expect("a token");
            format!("/exec/{token}")
        });
        tokens.revoke("a");
        assert!(tokens.take(&revoked).is_none() && tokens.take(&other).is_some());
    }

    /// CRI rule C33: a token can be used once, for its kind, for a minute, and at most 1,000 requests wait.
    #[tokio::test(start_paused = true)]
    async fn token_works_once_for_a_minute() {
        let tokens = Tokens::new(Limits::default());
        let wanted = Wanted { stdout: true, ..Wanted::default() };
        let token = tokens.register(Kind::Exec, &owner(), request(wanted)).expect("a token");
        assert_eq!(token.len(), 32);
        assert!(tokens.take(&format!("/attach/{token}")).is_none());
        assert!(tokens.take(&format!("/exec/{token}")).is_some());
        assert!(tokens.take(&format!("/exec/{token}")).is_none());
        let late = tokens.register(Kind::Exec, &owner(), request(wanted)).expect("a token");
        for _ in 0..999 {
            tokens.register(Kind::Attach, &owner(), request(wanted)).expect("a token");
        }
        assert!(matches!(tokens.register(Kind::Exec, &owner(), request(wanted)), Err(RegisterError::TooMany(1000))));
        tokio::time::advance(std::time::Duration::from_secs(61)).await;
        assert!(tokens.take(&format!("/exec/{late}")).is_none());
        tokens.register(Kind::Exec, &owner(), request(wanted)).expect("the others expired");
    }

    #[test]
    fn invalid_streams_are_refused() {
        let tokens = Tokens::new(Limits::default());
        let stderr = Wanted { tty: true, stderr: true, ..Wanted::default() };
        assert!(matches!(tokens.register(Kind::Exec, &owner(), request(stderr)), Err(RegisterError::TtyStderr)));
        assert!(matches!(
            tokens.register(Kind::Exec, &owner(), request(Wanted::default())),
            Err(RegisterError::NoStream)
        ));
    }
}
