//! Accepts TLS connections over TCP, with certificates on both sides (mutual TLS).
//!
//! ```text
//!  thread `tls`                                                       the runtime
//!  accept ──> limiter ──> handshake ──> certificate, caller ──queue──>  slots, wire, services
//!               │            │               │
//!            refused      too slow        refused with an alert
//! ```
//! Anyone can connect, so everything before the verification of the certificate is bounded: concurrent handshakes,
//! their time and bytes, and connections per address. Handshakes run on a separate thread, so that unauthenticated
//! clients do not delay calls. A client receives no HTTP/2 data until its certificate is verified and identifies a
//! caller ([`CertificatePolicy`]).
//!
//! Decrypted data is only in the session's own buffers, which are overwritten (module `session`).

mod admission;
mod certificates;
mod handshakes;
mod session;
mod stream;

use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener, TcpStream as StdTcpStream};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

pub use admission::Admission;
pub use certificates::{CertificateError, CertificatePolicy, Certificates, TlsFiles};
use handshakes::HandshakeLimiter;
pub use handshakes::Place;
pub use session::Session;
pub use stream::TlsStream;

/// Maximum number of accepted callers in the queue to the runtime. If the queue is full, further callers wait.
const QUEUE: usize = 32;
/// Pause after a failed accept.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Time limit for a refused client to read the alert.
const ALERT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of bytes that a refused client may still send before its connection is closed.
const UNREAD_MAX: usize = 64 << 10;
/// Interval at which refused clients are summarized in the log.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of refused clients that are logged individually per interval.
const LOGGED: u32 = 20;
/// Stack size of the thread, in bytes.
const STACK: usize = 512 << 10;

/// Limits before a client's certificate is verified.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeLimits {
    /// Maximum number of concurrent handshakes.
    pub handshakes: usize,
    /// Time limit for a handshake.
    pub time: Duration,
    /// Maximum number of connections per address, including connections in the handshake.
    pub each: usize,
}

/// A caller whose certificate was accepted.
#[derive(Debug)]
pub struct AcceptedStream<R: CertificatePolicy> {
    /// The caller that the certificate identifies.
    pub caller: R::Caller,
    /// The connected socket, which is non-blocking.
    pub stream: StdTcpStream,
    /// The TLS session, whose handshake is complete.
    pub session: Session,
    /// Verifies the certificate again during the connection.
    pub admission: Admission<R>,
    /// Counts the connection in the limit of its address, until this value is dropped.
    pub place: Place,
}

/// Starts the thread that accepts connections. The thread exits when `stopping` becomes true or the returned receiver
/// is dropped. `refused` is called for each client that is refused.
///
/// # Errors
/// Returns an error if the thread cannot be created.
pub fn open<R: CertificatePolicy>(
    listener: StdTcpListener,
    limits: HandshakeLimits,
    certificates: Arc<Certificates<R>>,
    refused: impl Fn() + Send + 'static,
    stopping: watch::Receiver<bool>,
) -> io::Result<mpsc::Receiver<AcceptedStream<R>>> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let acceptor = TlsAcceptor {
        limiter: HandshakeLimiter::new(limits.handshakes, limits.each),
        time: limits.time,
        certificates,
        accepted: sender,
        refused,
    };
    std::thread::Builder::new().name("tls".to_owned()).stack_size(STACK).spawn(move || {
        let tasks = tokio::task::LocalSet::new();
        tasks.block_on(&runtime, acceptor.run(listener, stopping));
    })?;
    Ok(receiver)
}

struct TlsAcceptor<R: CertificatePolicy, F> {
    limiter: HandshakeLimiter,
    time: Duration,
    certificates: Arc<Certificates<R>>,
    accepted: mpsc::Sender<AcceptedStream<R>>,
    /// Called for each refused client.
    refused: F,
}

impl<R: CertificatePolicy, F: Fn() + 'static> TlsAcceptor<R, F> {
    async fn run(self, listener: StdTcpListener, mut stopping: watch::Receiver<bool>) {
        let listener = match TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "cannot listen for callers over TCP"),
        };
        let (acceptor, log) = (std::rc::Rc::new(self), std::rc::Rc::new(std::cell::RefCell::new(Log::default())));
        while !*stopping.borrow() {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stopping.changed() => continue,
                () = acceptor.accepted.closed() => return,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    log.borrow_mut().refused(None, &format!("cannot accept a connection: {error}"));
                    sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            };
            let Some(place) = acceptor.limiter.enter(address.ip(), Instant::now().into_std()) else {
                (acceptor.refused)();
                let why = "too many concurrent handshakes, or too many connections from this address";
                log.borrow_mut().refused(Some(address), why);
                continue;
            };
            let (acceptor, log) = (std::rc::Rc::clone(&acceptor), std::rc::Rc::clone(&log));
            tokio::task::spawn_local(async move {
                if let Err(why) = acceptor.accept(stream, place).await {
                    (acceptor.refused)();
                    log.borrow_mut().refused(Some(address), &why);
                }
            });
        }
    }

    /// Performs a handshake, and sends the accepted caller to the runtime.
    ///
    /// # Errors
    /// Returns the reason if the client was refused.
    async fn accept(&self, mut stream: TcpStream, mut place: Place) -> Result<(), String> {
        let _ = stream.set_nodelay(true);
        let mut session = self.certificates.session().map_err(|error| error.to_string())?;
        let deadline = Instant::now() + self.time;
        let reason = |error: &rustls::Error| self.certificates.reason(error);
        let outcome = tokio::select! {
            outcome = timeout_at(deadline, handshake(&mut stream, &mut session, reason)) => outcome,
            () = place.lost() => {
                return Err("the handshake was aborted because another connection needed the slot".to_owned());
            }
        };
        let why = match outcome {
            Err(_) => return Err(format!("the handshake timed out after {} s", self.time.as_secs())),
            Ok(Err(HandshakeError::Gone(why))) => return Err(why),
            Ok(Err(HandshakeError::Refused(why))) => why,
            Ok(Ok(())) => match self.certificates.caller(&session) {
                Ok(caller) => {
                    place.settle(Instant::now().into_std());
                    session.settle();
                    let chain = session.certificates().to_vec();
                    let admission = Admission::new(Arc::clone(&self.certificates), chain);
                    tracing::debug!(%caller, "a caller connected");
                    let stream = stream.into_std().map_err(|error| error.to_string())?;
                    // Sending fails only if the daemon is stopping.
                    let _ = self.accepted.send(AcceptedStream { caller, stream, session, admission, place }).await;
                    return Ok(());
                }
                Err(why) => why,
            },
        };
        drop(session);
        tokio::select! {
            _ = timeout(ALERT_TIMEOUT, close_after_alert(&mut stream)) => {}
            () = place.lost() => {}
        }
        Err(why)
    }
}

/// Cause of a failed handshake.
enum HandshakeError {
    /// The client disconnected.
    Gone(String),
    /// The handshake failed or a certificate was rejected.
    Refused(String),
}

/// Exchanges the handshake messages. If the handshake fails, sends an alert with the reason.
async fn handshake(
    stream: &mut TcpStream,
    session: &mut Session,
    reason: impl Fn(&rustls::Error) -> String,
) -> Result<(), HandshakeError> {
    let gone = |error: io::Error| HandshakeError::Gone(format!("the connection broke during the handshake: {error}"));
    loop {
        let room = session.room().map_err(|error| HandshakeError::Gone(error.to_string()))?;
        let read = stream.read(room).await.map_err(gone)?;
        if read == 0 {
            return Err(HandshakeError::Gone("the client disconnected during the handshake".to_owned()));
        }
        // Describe the error before the alert is sent: meanwhile, other handshakes proceed and can replace the recorded
        // reason.
        let received = session.received(read).map_err(|error| HandshakeError::Refused(reason(&error)));
        while !session.unsent().is_empty() {
            let written = stream.write(session.unsent()).await.map_err(gone)?;
            session.sent(written);
        }
        received?;
        if !session.is_handshaking() {
            return Ok(());
        }
    }
}

/// Closes a connection so that the client can still read the alert. Reads the data that the client has sent, because
/// the kernel would discard the alert if data was unread.
async fn close_after_alert(stream: &mut TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let (mut buffer, mut read) = ([0; 1024], 0);
    while read < UNREAD_MAX {
        match stream.read(&mut buffer).await? {
            0 => break,
            more => read += more,
        }
    }
    Ok(())
}

/// Logs refused clients: up to [`LOGGED`] per interval individually, further clients as a count.
#[derive(Default)]
struct Log {
    begun: Option<Instant>,
    reported: u32,
    unreported: u64,
}

impl Log {
    fn refused(&mut self, address: Option<SocketAddr>, why: &str) {
        if self.begun.is_none_or(|begun| begun.elapsed() >= LOG_INTERVAL) {
            if self.unreported > 0 {
                tracing::warn!(
                    clients = self.unreported,
                    "refused further clients over TCP, which were not logged individually"
                );
            }
            *self = Self { begun: Some(Instant::now()), reported: 0, unreported: 0 };
        }
        if self.reported >= LOGGED {
            self.unreported += 1;
            return;
        }
        self.reported += 1;
        match address {
            Some(address) => tracing::warn!(%address, "refused a client over TCP: {why}"),
            None => tracing::error!("{why}"),
        }
    }
}
