//! Manages the connection to a receiver. The connection is opened on demand, with retries until it succeeds.
//!
//! This module never gives up or drops output: unsent output stays in the log files, and only the task that reads a log
//! waits here. The pauses between attempts grow to 15 seconds, with jitter, so that the nodes of a cell do not all
//! reconnect at the same time. Certificates are read for each attempt.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use executor_core::backoff::Backoff;
use prometheus_client::metrics::gauge::Gauge;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixDatagram, UnixStream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::MessageBatch;
use super::journald;
use crate::config::SyslogAddress;

/// Initial and maximum pause between attempts.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(15));
/// Time limit for a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time to wait after the handshake for a rejection of the node's certificate. With TLS 1.3 the rejection arrives only
/// after the handshake.
const REFUSAL_TIMEOUT: Duration = Duration::from_millis(300);
/// Minimum duration of a connection. A connection that breaks sooner counts as a failed attempt.
const CONNECTION_LIFETIME_MIN: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(super) enum Address {
    /// The journal's socket.
    Journald(PathBuf),
    Syslog(SyslogAddress),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Journald(path) | Self::Syslog(SyslogAddress::Unix(path)) => path.display().fmt(f),
            Self::Syslog(SyslogAddress::Tls { host, port, .. }) => write!(f, "{host}:{port}"),
        }
    }
}

#[derive(Debug)]
pub(super) struct Receiver {
    address: Address,
    connection: Option<ReceiverConnection>,
    pauses: Backoff,
    /// True if the next attempt must wait.
    failed: bool,
    /// Last logged reason of a failed attempt.
    reported: Option<String>,
    connected: Gauge,
}

#[derive(Debug)]
struct ReceiverConnection {
    since: Instant,
    channel: Channel,
}

enum Channel {
    /// A datagram socket, with one message per datagram.
    Datagram(UnixDatagram),
    /// Messages with length prefixes (RFC 6587, section 3.4.1). The receiving side is read, because only a read detects
    /// a closed connection.
    Stream { write: Box<dyn AsyncWrite + Send + Unpin>, closed: watch::Receiver<bool> },
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Datagram(_) => "Datagram",
            Self::Stream { .. } => "Stream",
        })
    }
}

impl Receiver {
    pub(super) fn new(address: Address, connected: Gauge) -> Self {
        Self { address, connection: None, pauses: PAUSES, failed: false, reported: None, connected }
    }

    /// Connects if there is no connection, and retries until the connection is open.
    pub(super) async fn connect(&mut self) {
        while self.connection.is_none() {
            if std::mem::take(&mut self.failed) {
                tokio::time::sleep(crate::with_jitter(self.pauses.pause())).await;
            }
            let attempt = timeout(CONNECT_TIMEOUT, open(&self.address, &self.connected)).await;
            match attempt.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut))) {
                Ok(channel) => {
                    tracing::info!(receiver = %self.address, "connected to the log receiver");
                    self.reported = None;
                    self.connection = Some(ReceiverConnection { since: Instant::now(), channel });
                    self.connected.set(1);
                }
                Err(error) => {
                    self.failed = true;
                    let why = executor_core::errors::plain(&error);
                    // Log each reason once: the failure may last for hours.
                    if self.reported.as_ref() != Some(&why) {
                        tracing::warn!(receiver = %self.address, why, "cannot connect to the log receiver: logs wait until it is reachable");
                        self.reported = Some(why);
                    }
                }
            }
        }
    }

    /// Sends a batch, over as many connections as needed. `sent` counts the sent messages. If a stream breaks within a
    /// batch, the whole batch is sent again, so its messages may be duplicated. Cancel this call only if no further
    /// batch is sent.
    pub(super) async fn send(&mut self, batch: &MessageBatch, sent: &mut usize) {
        while *sent < batch.messages.len() {
            self.connect().await;
            let Some(connection) = &mut self.connection else { continue };
            let Err(error) = connection.channel.send(batch, sent).await else { continue };
            let why = executor_core::errors::plain(&error);
            tracing::warn!(
                receiver = %self.address, why,
                "the connection to the log receiver was lost: lines that the receiver had not read may be lost"
            );
            self.failed = connection.since.elapsed() < CONNECTION_LIFETIME_MIN;
            if !self.failed {
                self.pauses.reset();
            }
            self.connection = None;
            self.connected.set(0);
        }
    }
}

impl Channel {
    async fn send(&mut self, batch: &MessageBatch, sent: &mut usize) -> io::Result<()> {
        match self {
            Self::Datagram(socket) => {
                while *sent < batch.messages.len() {
                    let message = batch.message(*sent);
                    match socket.send(message).await {
                        Err(error) if is_too_long(&error) => journald::send_file(socket, message).await?,
                        sent => drop(sent?),
                    }
                    *sent += 1;
                }
                Ok(())
            }
            Self::Stream { write, closed } => {
                let mut frames = Vec::with_capacity(batch.bytes.len() + 8 * batch.messages.len());
                for index in *sent..batch.messages.len() {
                    let message = batch.message(index);
                    frames.extend_from_slice(format!("{} ", message.len()).as_bytes());
                    frames.extend_from_slice(message);
                }
                let out = async {
                    write.write_all(&frames).await?;
                    write.flush().await
                };
                tokio::select! {
                    biased;
                    _ = closed.wait_for(|closed| *closed) => return Err(io::ErrorKind::ConnectionReset.into()),
                    done = out => done?,
                }
                *sent = batch.messages.len();
                Ok(())
            }
        }
    }
}

fn is_too_long(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    [rustix::io::Errno::MSGSIZE, rustix::io::Errno::NOBUFS].iter().any(|one| Some(one.raw_os_error()) == errno)
}

async fn open(address: &Address, connected: &Gauge) -> io::Result<Channel> {
    match address {
        Address::Journald(path) => datagram(path).map(Channel::Datagram),
        Address::Syslog(SyslogAddress::Unix(path)) => match datagram(path) {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::PROTOTYPE.raw_os_error()) => {
                Ok(stream(UnixStream::connect(path).await?, connected))
            }
            socket => socket.map(Channel::Datagram),
        },
        Address::Syslog(SyslogAddress::Tls { host, port, ca_file, own }) => {
            let (ca_file, own) = (ca_file.clone(), own.clone());
            let config = tokio::task::spawn_blocking(move || configuration(&ca_file, own.as_ref())).await;
            let config = config.map_err(io::Error::other)??;
            let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
            let tcp = TcpStream::connect((host.as_str(), *port)).await?;
            tcp.set_nodelay(true)?;
            rustix::net::sockopt::set_socket_keepalive(&tcp, true)?;
            let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
            let mut channel = stream(tls, connected);
            if let Channel::Stream { closed, .. } = &mut channel
                && timeout(REFUSAL_TIMEOUT, closed.wait_for(|closed| *closed)).await.is_ok()
            {
                return Err(io::Error::other(
                    "the receiver closed the connection after the handshake and may require another certificate",
                ));
            }
            Ok(channel)
        }
    }
}

fn datagram(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    Ok(socket)
}

/// Spawns a task that detects when the peer closes the stream, and returns the write half.
fn stream(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, connected: &Gauge) -> Channel {
    let (mut read, write) = tokio::io::split(stream);
    let (closed, is_closed) = watch::channel(false);
    let connected = connected.clone();
    tokio::spawn(async move {
        let mut nothing = [0; 256];
        loop {
            tokio::select! {
                // The connection was dropped.
                () = closed.closed() => return,
                read = read.read(&mut nothing) => if !matches!(read, Ok(1..)) { break },
            }
        }
        connected.set(0);
        closed.send_replace(true);
    });
    Channel::Stream { write: Box::new(write), closed: is_closed }
}

/// Loads the certificates, and creates the TLS configuration of a connection.
fn configuration(ca_file: &Path, own: Option<&(PathBuf, PathBuf)>) -> io::Result<ClientConfig> {
    let of = |path: &Path| {
        let shown = path.display().to_string();
        move |error: &dyn std::fmt::Display| io::Error::other(format!("{shown}: {error}"))
    };
    let certificates = |path: &Path| {
        let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let found = found.map_err(|error| of(path)(&error))?;
        if found.is_empty() { Err(of(path)(&"has no certificate")) } else { Ok(found) }
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca_file)? {
        roots.add(certificate).map_err(|error| of(ca_file)(&error))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots);
    let Some((certificate, key)) = own else { return Ok(config.with_no_client_auth()) };
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| of(key)(&error))?;
    config.with_client_auth_cert(certificates(certificate)?, secret).map_err(|error| of(certificate)(&error))
}
