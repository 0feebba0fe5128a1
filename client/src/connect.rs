//! The connection to executord: gRPC on a unix socket, or over TCP with mutual TLS.
//!
//! The channel reconnects by itself. Calls that are safe to repeat are repeated until executord is back
//! ([`Client::with_patience`]).

use std::error::Error as _;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use executor_proto::v1::executor_client::ExecutorClient;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::address::{ServerAddress, Tls, host_and_port};
use crate::error::{ConnectError, Error, Refusal};
use crate::retry::{Patience, is_lost};
use crate::tls::{Connector, TlsError};

/// Default socket of executord.
pub const DEFAULT_SOCKET: &str = "/run/executor/executor.sock";
/// Default time that calls wait for an executord that is unavailable.
pub const DEFAULT_PATIENCE: Duration = Duration::from_secs(30);
/// Maximum size of an accepted response, in bytes.
const MESSAGE_MAX: usize = 4 << 20;
/// Interval of HTTP/2 PINGs while calls are in progress, and time limit for the reply to a PING.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));
/// Maximum length of a unix socket path, in bytes (unix(7)).
const SOCKET_PATH_MAX: usize = 107;

/// A client of one executord. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    address: Arc<ServerAddress>,
    patience: Duration,
}

impl Client {
    /// Connects to a socket, given as a path or as `unix:///path`.
    ///
    /// # Errors
    /// Returns an error if no executord listens on the socket, or the caller may not connect.
    pub async fn connect(socket: impl AsRef<Path>) -> Result<Self, ConnectError> {
        Self::connect_socket(socket.as_ref(), None).await
    }

    /// Connects to a socket as [`Self::connect`] does, with HTTP/2 PINGs while calls are in progress: calls fail if
    /// executord does not respond, for example because a signal has stopped the process. The intervals are the same as
    /// in [`Self::connect_tls`].
    ///
    /// # Errors
    /// Returns the same errors as [`Self::connect`].
    pub async fn connect_with_keepalive(socket: impl AsRef<Path>) -> Result<Self, ConnectError> {
        Self::connect_socket(socket.as_ref(), Some(KEEPALIVE)).await
    }

    async fn connect_socket(socket: &Path, keepalive: Option<(Duration, Duration)>) -> Result<Self, ConnectError> {
        let bad_path = || ConnectError::BadPath(socket.into());
        let text = socket.to_str().ok_or_else(bad_path)?;
        let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
        if path.is_empty() || path.len() > SOCKET_PATH_MAX || path.contains('\0') {
            return Err(bad_path());
        }
        let mut endpoint = Endpoint::from_shared(format!("unix://{path}")).map_err(|_| bad_path())?;
        if let Some((interval, limit)) = keepalive {
            endpoint = endpoint.http2_keep_alive_interval(interval).keep_alive_timeout(limit);
        }
        let address = ServerAddress::Socket(path.into());
        let channel = endpoint.connect().await.map_err(|error| connect_error(address.clone(), &error))?;
        Ok(Self { channel, address: Arc::new(address), patience: DEFAULT_PATIENCE })
    }

    /// Connects to `HOST:PORT` over TCP with mutual TLS. Only TLS 1.3 is supported.
    ///
    /// # Errors
    /// Returns an error if no executord listens at the address, a certificate of the client or of executord is
    /// rejected, or a credential file cannot be read.
    pub async fn connect_tls(address: &str, tls: &Tls) -> Result<Self, ConnectError> {
        let bad_address = || ConnectError::BadAddress(address.to_owned());
        host_and_port(address).ok_or_else(bad_address)?;
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| bad_address())?;
        let origin = format!("https://{address}").parse().map_err(|_| bad_address())?;
        let (interval, limit) = KEEPALIVE;
        let endpoint = endpoint.origin(origin).http2_keep_alive_interval(interval).keep_alive_timeout(limit);
        let at = ServerAddress::Tcp(address.to_owned());
        let connected = endpoint.connect_with_connector(Connector::new(address, tls)).await;
        let channel = connected.map_err(|error| connect_error(at.clone(), &error))?;
        Ok(Self { channel, address: Arc::new(at), patience: DEFAULT_PATIENCE })
    }

    /// Sets the time that calls wait for an executord that is unavailable, instead of [`DEFAULT_PATIENCE`].
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Returns the generated gRPC client, for RPCs that have no method in this crate.
    pub fn rpc(&self) -> ExecutorClient<Channel> {
        ExecutorClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX)
    }

    /// Returns the gRPC channel, for clients of other services on the same connection.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Returns the address of executord.
    pub fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// Returns true if executord is serving, by the gRPC health protocol.
    ///
    /// # Errors
    /// Returns an error if executord does not respond.
    pub async fn is_serving(&self) -> Result<bool, Error> {
        let request = HealthCheckRequest { service: String::new() };
        let answer = HealthClient::new(self.channel()).check(request).await;
        Ok(answer.map_err(|status| self.error(&status))?.into_inner().status() == ServingStatus::Serving)
    }

    /// Converts a gRPC status to an error.
    pub fn error(&self, status: &Status) -> Error {
        match is_lost(status) {
            true => Error::Lost { at: ServerAddress::clone(&self.address) },
            false => Error::Refused(Box::new(Refusal::new(&self.address, status))),
        }
    }

    pub(crate) fn patience(&self) -> Patience {
        Patience::new(self.patience)
    }

    /// Converts the result of an RPC that is not retried.
    pub(crate) fn answer<T>(&self, answer: Result<Response<T>, Status>) -> Result<T, Error> {
        answer.map(Response::into_inner).map_err(|status| self.error(&status))
    }

    /// Makes a call, and repeats it while `away` returns true for the status of its failure. The call must be
    /// idempotent, because executord may receive it more than once.
    pub(crate) async fn retry<T, F>(
        &self,
        away: fn(&Status) -> bool,
        mut call: impl FnMut(ExecutorClient<Channel>) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut patience = self.patience();
        loop {
            let begun = Instant::now();
            match call(self.rpc()).await {
                Ok(response) => return Ok(response.into_inner()),
                Err(status) => self.await_return(&mut patience, begun, &status, away).await?,
            }
        }
    }

    /// Waits before the next attempt if `away` accepts the status; otherwise returns the status as an error. `begun` is
    /// the start time of the failed attempt.
    pub(crate) async fn await_return(
        &self,
        patience: &mut Patience,
        begun: Instant,
        status: &Status,
        away: fn(&Status) -> bool,
    ) -> Result<(), Error> {
        if !away(status) {
            return Err(self.error(status));
        }
        self.wait_to_retry(patience, begun, is_lost(status)).await
    }

    /// Waits after a failed attempt that began at `begun`. `was_lost` is true if executord did not respond.
    async fn wait_to_retry(&self, patience: &mut Patience, begun: Instant, was_lost: bool) -> Result<(), Error> {
        match patience.pause_after(begun, was_lost).await {
            true => Ok(()),
            false => Err(Error::GaveUp { at: ServerAddress::clone(&self.address), waited: self.patience }),
        }
    }
}

/// Retries of an operation that is safe to repeat as a whole, such as fetching outputs.
#[derive(Debug)]
pub struct Attempts {
    client: Client,
    patience: Patience,
    begun: Instant,
}

impl Client {
    /// Returns the retries of an operation whose first attempt begins now.
    pub fn attempts(&self) -> Attempts {
        Attempts { client: self.clone(), patience: self.patience(), begun: Instant::now() }
    }
}

impl Attempts {
    /// Waits before the next attempt.
    ///
    /// # Errors
    /// Returns `error` if repeating cannot help ([`Error::is_away`] is false). Returns an error if executord stays
    /// unavailable longer than [`crate::Client::with_patience`] allows.
    pub async fn again(&mut self, error: Error) -> Result<(), Error> {
        if !error.is_away() {
            return Err(error);
        }
        self.client.wait_to_retry(&mut self.patience, self.begun, error.is_lost()).await?;
        self.begun = Instant::now();
        Ok(())
    }
}

fn connect_error(at: ServerAddress, error: &tonic::transport::Error) -> ConnectError {
    let mut cause = error.source();
    let mut reason = error.to_string();
    while let Some(error) = cause {
        reason = error.to_string();
        if let (Some(TlsError::Tls(reason)), ServerAddress::Tcp(address)) = (error.downcast_ref::<TlsError>(), &at) {
            return ConnectError::Tls { address: address.clone(), reason: reason.clone() };
        }
        let io = match error.downcast_ref::<TlsError>() {
            Some(TlsError::Tcp(error)) => Some(error),
            _ => error.downcast_ref::<io::Error>(),
        };
        match (io.map(io::Error::kind), &at) {
            (Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::NotADirectory), _) => {
                return ConnectError::NotListening(at);
            }
            (Some(io::ErrorKind::PermissionDenied), ServerAddress::Socket(path)) => {
                return ConnectError::Denied(path.clone());
            }
            _ => {}
        }
        cause = error.source();
    }
    ConnectError::Other { at, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_without_a_listener_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("executor.sock");
        let error = Client::connect(&socket).await.err().unwrap();
        assert!(matches!(&error, ConnectError::NotListening(at) if at.socket() == Some(&*socket)), "{error}");
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let left_behind = Client::connect(&socket).await.err().unwrap();
        assert!(matches!(left_behind, ConnectError::NotListening(_)), "{left_behind}");
        for bad in ["", "unix://", "x\0y", &*"x".repeat(120)] {
            assert!(matches!(Client::connect(bad).await.err().unwrap(), ConnectError::BadPath(_)), "{bad}");
        }
    }
}
