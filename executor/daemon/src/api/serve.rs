//! The accept loop: connections, whom they belong to, and their end.
//!
//! tonic's own server is not used, because what a connection leaves in memory must be in our hands: when a call that
//! carried secrets is over, the connection's read buffer is overwritten (see the module `scrub`). A connection ends when
//! its client ends it, or, gracefully, when the daemon stops.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use executor_sys::peer::{self, Peer};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service as _, http};
use tonic::service::Routes;

use super::auth::Access;
use super::scrub::{Scrubbed, Scrubber};

/// Largest list of headers: the tokens and trace contexts of a gRPC call fit many times.
const HEADERS_MAX: u32 = 16 << 10;
/// Bytes of answers that are buffered for a stream whose client does not read.
const SEND_BUFFER: usize = 64 << 10;
/// Between looks whether a silent client is still there, and for its answer.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(20));
/// When no connection can be accepted (out of descriptors), before the next attempt.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The methods whose requests carry secrets.
const CARRY_SECRETS: [&str; 2] = ["/executor.v1.Executor/Run", "/executor.v1.Executor/UpdateFiles"];

/// Bounds of the server.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections at once; more wait.
    pub connections: usize,
    /// Calls at once on a connection.
    pub streams: u32,
}

/// Attached to each of their calls: the handler says when the request held nothing secret. Left alone, the connection's buffer is
/// overwritten, also where the request never reached the handler.
#[derive(Clone, Debug, Default)]
pub(crate) struct Harmless(Arc<AtomicBool>);

impl Harmless {
    /// The request held nothing secret.
    pub(crate) fn declare(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Overwrites the connection's buffer when the call that it stands for is over, however that came.
struct EndOfCall {
    harmless: Harmless,
    scrubber: Scrubber,
}

impl Drop for EndOfCall {
    fn drop(&mut self) {
        if !self.harmless.0.load(Ordering::Relaxed) {
            self.scrubber.scrub();
        }
    }
}

/// Serves until told to stop, then until every connection has ended. The caller bounds that in time.
pub async fn serve(
    listener: UnixListener,
    routes: Routes,
    access: Access,
    bounds: Bounds,
    mut stopping: watch::Receiver<bool>,
) {
    let routes = routes.prepare();
    let permits = Arc::new(Semaphore::new(bounds.connections));
    while !*stopping.borrow() {
        let accepted = tokio::select! {
            accepted = accept(&listener, &permits) => accepted,
            _ = stopping.changed() => continue,
        };
        let (stream, permit) = match accepted {
            Ok(both) => both,
            Err(error) => {
                tracing::error!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match peer::of(&stream) {
            Ok(peer) => {
                let connection = Connection { routes: routes.clone(), access, peer, stopping: stopping.clone() };
                tokio::spawn(connection.attend(stream, bounds.streams, permit));
            }
            Err(error) => tracing::warn!(%error, "a client's credentials cannot be told"),
        }
    }
    drop(listener);
    let all = u32::try_from(bounds.connections).unwrap_or(u32::MAX);
    let _ = permits.acquire_many(all).await;
}

async fn accept(
    listener: &UnixListener,
    permits: &Arc<Semaphore>,
) -> std::io::Result<(UnixStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.map_err(std::io::Error::other)?;
    Ok((listener.accept().await?.0, permit))
}

struct Connection {
    routes: Routes,
    access: Access,
    peer: Peer,
    stopping: watch::Receiver<bool>,
}

impl Connection {
    async fn attend(self, stream: UnixStream, streams: u32, _permit: OwnedSemaphorePermit) {
        let Self { routes, access, peer, mut stopping } = self;
        let scrubber = Scrubber::default();
        let stream = Scrubbed::new(stream, scrubber.clone());
        let service = service_fn(move |request| call(routes.clone(), access, &peer, &scrubber, request));
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .max_concurrent_streams(streams)
            .max_header_list_size(HEADERS_MAX)
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(KEEPALIVE.0)
            .keep_alive_timeout(KEEPALIVE.1);
        let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
        let over = tokio::select! {
            over = connection.as_mut() => Some(over),
            _ = stopping.wait_for(|stopping| *stopping) => None,
        };
        let over = match over {
            Some(over) => over,
            None => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = over {
            tracing::debug!(%error, "a connection ended with an error");
        }
    }
}

/// Judges a call and passes it on.
fn call(
    mut routes: Routes,
    access: Access,
    peer: &Peer,
    scrubber: &Scrubber,
    mut request: http::Request<Incoming>,
) -> impl Future<Output = Result<http::Response<Body>, Infallible>> + use<> {
    let judged = access.judge(request.uri().path(), peer);
    let end_of_call = CARRY_SECRETS
        .contains(&request.uri().path())
        .then(|| EndOfCall { harmless: Harmless::default(), scrubber: scrubber.clone() });
    if let Some(end) = &end_of_call {
        request.extensions_mut().insert(end.harmless.clone());
    }
    async move {
        let _end_of_call = end_of_call;
        match judged {
            Ok(()) => routes.call(request).await,
            Err(problem) => {
                tracing::warn!("{problem}");
                Ok(Status::from(problem).into_http())
            }
        }
    }
}
