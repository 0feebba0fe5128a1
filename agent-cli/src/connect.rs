//! The connection to executord: a unix socket, gRPC on it, and patience when executord restarts.
//!
//! The channel connects anew by itself when the connection is gone; [`Client::patiently`] repeats a call that
//! may be repeated until executord is back, for [`PATIENCE`] at most. An answer of the daemon's is final, but for
//! UNAVAILABLE to a call that waits ([`status::is_away`]).

use std::error::Error as _;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use executor_proto::v1::executor_client::ExecutorClient;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use crate::failure::Failure;
use crate::{exit, status};

/// Where executord listens when nobody says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/executor/executor.sock";
/// How long a command waits for an executord that went away to come back.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Largest answer taken.
const MESSAGE_MAX: usize = 4 << 20;
/// First and longest pause between two attempts.
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_LONGEST: Duration = Duration::from_secs(1);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(
        "no executord listens on {}: start it, name its socket with --socket or EXECUTOR_SOCKET, or use --local",
        .0.display()
    )]
    NobodyThere(PathBuf),
    #[error("may not connect to {}: run as root, or as a member of the group that executord lets in (--allow-group)", .0.display())]
    Denied(PathBuf),
    #[error("{} is no usable path of a unix socket: it must be UTF-8, not empty and at most 107 bytes", .0.display())]
    BadPath(PathBuf),
    #[error("cannot connect to {}: {reason}", .socket.display())]
    Other { socket: PathBuf, reason: String },
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        Self::wrap(error, exit::OURS)
    }
}

/// A client of one executord. Cheap to clone: clones share the connection.
#[derive(Clone)]
pub struct Client {
    channel: Channel,
    socket: Arc<PathBuf>,
}

impl Client {
    /// Connects to `socket`, which may also be written `unix:///path`.
    pub async fn connect(socket: &Path) -> Result<Self, ConnectError> {
        let socket = match socket.to_str() {
            Some(text) => text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text),
            None => return Err(ConnectError::BadPath(socket.into())),
        };
        let bad_path = || ConnectError::BadPath(socket.into());
        if socket.is_empty() || socket.len() > 107 || socket.contains('\0') {
            return Err(bad_path());
        }
        let endpoint = Endpoint::from_shared(format!("unix://{socket}")).map_err(|_| bad_path())?;
        let channel = endpoint.connect().await.map_err(|error| connect_error(socket.into(), &error))?;
        Ok(Self { channel, socket: Arc::new(socket.into()) })
    }

    /// The service.
    pub fn rpc(&self) -> ExecutorClient<Channel> {
        ExecutorClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX)
    }

    /// The connection itself, for other services on it.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// The socket this client speaks to.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What `status` means for somebody who tried to `doing`.
    pub fn failure(&self, doing: &str, status: &Status) -> Failure {
        status::failure(&self.socket, doing, status)
    }

    /// Returns the failure of somebody who tried to `doing` and waited for executord in vain.
    pub fn gave_up(&self, doing: &str) -> Failure {
        Failure::GaveUp { doing: doing.to_owned(), socket: self.socket().into(), patience: PATIENCE }
    }

    /// Calls until there is an answer: over a connection that breaks, and over the time executord needs to
    /// come back. For calls that may be repeated; `away` tells whether a status is worth a repetition.
    pub async fn patiently<T, F>(
        &self,
        doing: &str,
        away: fn(&Status) -> bool,
        mut call: impl FnMut(ExecutorClient<Channel>) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut patience = Patience::default();
        loop {
            let begun = Instant::now();
            match call(self.rpc()).await {
                Ok(response) => return Ok(response.into_inner()),
                Err(status) if away(&status) => {
                    patience.since(begun);
                    if !patience.pause().await {
                        return Err(self.gave_up(doing));
                    }
                }
                Err(status) => return Err(self.failure(doing, &status)),
            }
        }
    }
}

fn connect_error(socket: PathBuf, error: &tonic::transport::Error) -> ConnectError {
    let mut cause = error.source();
    let mut reason = error.to_string();
    while let Some(error) = cause {
        reason = error.to_string();
        if let Some(io) = error.downcast_ref::<io::Error>() {
            match io.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::NotADirectory => {
                    return ConnectError::NobodyThere(socket);
                }
                io::ErrorKind::PermissionDenied => return ConnectError::Denied(socket),
                _ => {}
            }
        }
        cause = error.source();
    }
    ConnectError::Other { socket, reason }
}

/// Counts the time since executord was last heard of, and makes pauses that grow.
#[derive(Debug, Default)]
pub struct Patience {
    silent_since: Option<Instant>,
    pause: Duration,
}

impl Patience {
    /// Executord answered: the clock starts anew at the next failure.
    pub fn heard(&mut self) {
        *self = Self::default();
    }

    /// An attempt that began at `begun` failed. One that lasted had a connection all the while.
    pub fn since(&mut self, begun: Instant) {
        if begun.elapsed() > PAUSE_LONGEST {
            self.heard();
        }
    }

    /// Waits before the next attempt; false when it has been too long.
    pub async fn pause(&mut self) -> bool {
        let now = Instant::now();
        let silent_since = *self.silent_since.get_or_insert(now);
        if now.duration_since(silent_since) >= PATIENCE {
            return false;
        }
        self.pause = (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_LONGEST);
        tokio::time::sleep(self.pause).await;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn patience_ends_after_thirty_seconds_of_silence() {
        let begun = Instant::now();
        let mut patience = Patience::default();
        let mut attempts = 0;
        while patience.pause().await {
            attempts += 1;
        }
        let waited = begun.elapsed();
        assert!(waited >= PATIENCE && waited < PATIENCE + PAUSE_LONGEST, "{waited:?}");
        assert!((30..60).contains(&attempts), "{attempts}");
    }

    #[tokio::test(start_paused = true)]
    async fn patience_starts_anew_when_executord_was_heard() {
        let mut patience = Patience::default();
        for _ in 0..100 {
            assert!(patience.pause().await);
            patience.heard();
        }
        let begun = Instant::now();
        tokio::time::sleep(Duration::from_secs(5)).await;
        while patience.pause().await {}
        patience.since(begun);
        assert!(patience.pause().await, "an attempt of seconds had a connection");
    }

    #[tokio::test]
    async fn a_missing_socket_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("executor.sock");
        let error = Client::connect(&socket).await.err().unwrap().to_string();
        assert!(error.contains(&*socket.to_string_lossy()) && error.contains("--local"), "{error}");
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let left_behind = Client::connect(&socket).await.err().unwrap();
        assert!(matches!(left_behind, ConnectError::NobodyThere(_)), "{left_behind}");
        let long = dir.path().join("x".repeat(120));
        assert!(matches!(Client::connect(&long).await.err().unwrap(), ConnectError::BadPath(_)));
    }
}
