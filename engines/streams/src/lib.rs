//! Serves the streaming protocols of the kubelet: exec, attach and port-forward over HTTP/1.1.
//!
//! The caller registers a request and gets a URL with a token ([`Streams::exec`], [`Streams::attach`],
//! [`Streams::port_forward`]). A client that opens the URL within a minute upgrades the connection, and its streams are
//! passed to the caller's [`Handler`] or [`Connect`]. A token can be used once, unless the request is
//! revoked first ([`Streams::revoke`]). The crate is independent of containers and executord.
//!
//! | upgrade | protocols |
//! |---|---|
//! | `SPDY/3.1`, exec and attach | `v4.channel.k8s.io` to `v2.channel.k8s.io`, `channel.k8s.io` |
//! | `SPDY/3.1`, port-forward | `portforward.k8s.io` |
//! | `websocket`, exec and attach | `v5.channel.k8s.io`, `v4.channel.k8s.io`, `channel.k8s.io`, and base64 |
//! | `websocket`, port-forward | `SPDY/3.1+portforward.k8s.io`: the SPDY connection in binary messages |
//!
//! # Order and cancellation
//!
//! All output is sent before the status, because both pass through one queue of the connection. A client that closes
//! its connection cancels the handler: the future is dropped. A connection without a frame in either direction for
//! [`Limits::idle`] is closed; pings do not count.
//!
//! # Back-pressure
//!
//! As with the kubelet, the SPDY connection has no window per stream, because spdystream neither sends nor reads
//! `WINDOW_UPDATE`. Queues bound the memory instead. Output waits for the client ([`Output::write`]). If a stream's
//! input is not read, the server stops reading from the client after at most 1 MiB. In port-forward, where
//! streams are independent, a stream whose input has been stuck for [`Limits::stall`] is reset, so that it cannot block
//! the other streams forever.
//!
//! # Secrets
//!
//! Output can hold secrets. No payload is logged. Buffers are freed as soon as they are sent; a program with the
//! allocator of `executor-secrets` overwrites them then.
#![forbid(unsafe_code)]

mod activity;
mod exec;
mod forward;
mod packet;
mod pipe;
mod serve;
mod spdy;
mod status;
mod tokens;
mod websocket;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

pub use pipe::{Input, Output, Resizes, Size};
pub use serve::{Server, Streams};
pub use tokens::RegisterError;

/// Owned future of a handler.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum number of concurrent connections. Further clients wait in the backlog of the listener.
    pub connections: usize,
    /// Maximum number of registered requests whose client has not connected.
    pub waiting: usize,
    /// Time after which an unused token expires.
    pub token: Duration,
    /// Time limit for the client to open the streams of a request, and the second stream of a port-forward pair.
    pub streams: Duration,
    /// Maximum time without a frame in either direction.
    pub idle: Duration,
    /// Maximum time that unread input of one port-forward pair blocks the other pairs.
    pub stall: Duration,
    /// Maximum number of open port-forward pairs of one connection.
    pub pairs: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            waiting: 1000,
            token: Duration::from_secs(60),
            streams: Duration::from_secs(30),
            idle: Duration::from_secs(4 * 3600),
            stall: Duration::from_secs(30),
            pairs: 512,
        }
    }
}

/// Streams that an exec or attach request connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    /// True if the process has a terminal. The terminal has no separate stderr.
    pub tty: bool,
}

/// The client's streams, for the handler of an exec or attach request.
#[derive(Debug)]
pub struct Process {
    pub stdin: Option<Input>,
    pub stdout: Option<Output>,
    pub stderr: Option<Output>,
    /// Sizes of the client's terminal, if the request has one and the protocol reports sizes.
    pub resizes: Option<Resizes>,
}

/// Result of an exec or attach request, which becomes the status of the error stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The process exited with this code; 0 is success.
    Exited(i32),
    /// The process could not be run or waited for. The message is sent to the client.
    Failed(String),
}

/// Runs an exec or attach request.
pub trait Handler: Send + 'static {
    /// Runs the request to completion. All output has to be written when the future returns. The future is dropped if
    /// the client disconnects.
    fn run(self: Box<Self>, process: Process) -> BoxFuture<Outcome>;
}

impl<F, R> Handler for F
where
    F: FnOnce(Process) -> R + Send + 'static,
    R: Future<Output = Outcome> + Send + 'static,
{
    fn run(self: Box<Self>, process: Process) -> BoxFuture<Outcome> {
        Box::pin(self(process))
    }
}

/// A connection to a port.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// Opens the connections of a port-forward request.
pub trait Connect: Send + Sync + 'static {
    /// Connects to a port.
    ///
    /// # Errors
    ///
    /// Returns the error of the connection. Refused, reset and aborted connections end their pair of streams only. The
    /// message of any other error is sent to the client, and clients such as kubectl then end the session.
    fn connect(&self, port: u16) -> BoxFuture<io::Result<Box<dyn Connection>>>;
}
