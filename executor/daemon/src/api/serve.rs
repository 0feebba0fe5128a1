//! The accept loop: connections, whom they belong to, and their end.
//!
//! tonic's own server is not used, because what a connection leaves in memory must be in our hands: when a call that
//! carried secrets is over, the connection's read buffer is overwritten (see the module `scrub`). A connection ends when
//! its client ends it, gracefully when the daemon stops, and soon after secrets were answered (see `parting`).
//!
//! There are two doors: the control plane's, and the one that containers see. What comes in at the second one is bounded
//! apart from the first, in number, in number for each user, and in time.

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

use super::auth::{Access, Door, GET_SECRETS};
use super::crowd::{Crowd, Place};
use super::parting::{self, Parting, Remainder};
use super::scrub::{Scrubbed, Scrubber};
use super::secrets;

/// Largest list of headers: the tokens and trace contexts of a gRPC call fit many times.
const HEADERS_MAX: u32 = 16 << 10;
/// Bytes of answers that are buffered for a stream whose client does not read.
const SEND_BUFFER: usize = 64 << 10;
/// Between looks whether a silent client is still there, and for its answer.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(20));
/// When no connection can be accepted (out of descriptors), before the next attempt.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The methods whose requests carry secrets.
const CARRY_SECRETS: [&str; 5] = [
    "/executor.v1.Executor/Run",
    "/executor.v1.Executor/UpdateFiles",
    "/executor.v1.Executor/Exec",
    "/executor.v1.Executor/Attach",
    "/executor.v1.Images/Pull",
];

/// Bounds of the server.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections at once; more wait.
    pub connections: usize,
    /// Calls at once on a connection.
    pub streams: u32,
}

/// Bounds of what containers see: each asks once, for something short.
const RUNTIME_BOUNDS: Bounds = Bounds { connections: 128, streams: 4 };
/// Connections of one user of the host at once on what containers see.
const RUNTIME_CROWD: usize = 32;
/// Between two connections that are taken there: clients that come as fast as they can take no more than a part of one
/// processor from the control plane.
const RUNTIME_PACE: Duration = Duration::from_millis(1);
/// For a call to be made and answered there.
const RUNTIME_LIFETIME: Duration = Duration::from_secs(10);

/// A socket and what is served on it.
#[derive(Debug)]
pub(crate) struct Entrance {
    listener: UnixListener,
    routes: Routes,
    door: Door,
    bounds: Bounds,
    crowd: Option<Crowd>,
    lifetime: Option<Duration>,
    pace: Option<Duration>,
}

impl Entrance {
    /// The control plane's.
    pub(crate) fn main(listener: UnixListener, routes: Routes, access: Access, bounds: Bounds) -> Self {
        Self { listener, routes, door: Door::Main(access), bounds, crowd: None, lifetime: None, pace: None }
    }

    /// The containers'.
    pub(crate) fn runtime(listener: UnixListener, routes: Routes) -> Self {
        Self {
            listener,
            routes,
            door: Door::Runtime,
            bounds: RUNTIME_BOUNDS,
            crowd: Some(Crowd::new(RUNTIME_CROWD)),
            lifetime: Some(RUNTIME_LIFETIME),
            pace: Some(RUNTIME_PACE),
        }
    }
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

/// Attached likewise, for calls whose requests go on: overwrites the connection's buffer whenever the handler says so.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scrubs(Scrubber);

impl Scrubs {
    /// Overwrites what was read until now.
    pub(crate) fn scrub(&self) {
        self.0.scrub();
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
pub(crate) async fn serve(entrance: Entrance, mut stopping: watch::Receiver<bool>) {
    let Entrance { listener, routes, door, bounds, crowd, lifetime, pace } = entrance;
    let routes = routes.prepare();
    let permits = Arc::new(Semaphore::new(bounds.connections));
    while !*stopping.borrow() {
        if let Some(pace) = pace {
            tokio::time::sleep(pace).await;
        }
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
        let peer = match peer::of(&stream) {
            Ok(peer) => peer,
            Err(error) => {
                tracing::warn!(%error, "a client's credentials cannot be told");
                continue;
            }
        };
        let place = crowd.as_ref().map(|crowd| crowd.enter(peer.uid));
        if matches!(place, Some(None)) {
            tracing::debug!(uid = peer.uid, "a user has all the connections that it may have");
            continue;
        }
        let connection = Connection {
            routes: routes.clone(),
            door,
            peer,
            lifetime,
            stopping: stopping.clone(),
            held: (permit, place.flatten()),
        };
        tokio::spawn(connection.attend(stream, bounds.streams));
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
    door: Door,
    peer: Peer,
    lifetime: Option<Duration>,
    stopping: watch::Receiver<bool>,
    /// Given back when the connection has ended.
    held: (OwnedSemaphorePermit, Option<Place>),
}

/// Why a connection is ended from here.
enum Why {
    Stopping,
    Parting,
}

impl Connection {
    async fn attend(self, stream: UnixStream, streams: u32) {
        let Self { routes, door, peer, lifetime, mut stopping, held: _held } = self;
        let (scrubber, parting) = (Scrubber::default(), Parting::default());
        let remainder = match Remainder::of(&stream) {
            Ok(remainder) => remainder,
            Err(error) => return tracing::error!(%error, "a connection cannot be served"),
        };
        let stream = Scrubbed::new(parting.watching(stream), scrubber.clone());
        let service = {
            let parting = parting.clone();
            service_fn(move |request| call(routes.clone(), door, &peer, &scrubber, &parting, request))
        };
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .max_concurrent_streams(streams)
            .max_header_list_size(HEADERS_MAX)
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(KEEPALIVE.0)
            .keep_alive_timeout(KEEPALIVE.1);
        let mut connection = Box::pin(http.serve_connection(TokioIo::new(stream), service));
        let too_old = async {
            match lifetime {
                Some(lifetime) => tokio::time::sleep(lifetime).await,
                None => std::future::pending().await,
            }
        };
        let why = tokio::select! {
            over = connection.as_mut() => return told(over),
            _ = stopping.wait_for(|stopping| *stopping) => Why::Stopping,
            () = parting.begun() => Why::Parting,
            () = too_old => Why::Parting,
        };
        connection.as_mut().graceful_shutdown();
        match why {
            Why::Stopping => told(connection.await),
            Why::Parting => {
                let deadline = parting::deadline();
                tokio::select! {
                    biased; // what can be written is written first
                    over = connection.as_mut() => told(over),
                    // A client that does not go: what the connection holds is freed without it.
                    () = parting.over(deadline) => {}
                }
                drop(connection);
                if parting.has_begun() {
                    remainder.taken(deadline).await;
                }
            }
        }
    }
}

fn told(over: hyper::Result<()>) {
    if let Err(error) = over {
        tracing::debug!(%error, "a connection ended with an error");
    }
}

/// Judges a call and passes it on.
fn call(
    mut routes: Routes,
    door: Door,
    peer: &Peer,
    scrubber: &Scrubber,
    parting: &Parting,
    mut request: http::Request<Incoming>,
) -> impl Future<Output = Result<http::Response<Body>, Infallible>> + use<> {
    let judged = door.judge(request.uri().path(), peer);
    let end_of_call = CARRY_SECRETS
        .contains(&request.uri().path())
        .then(|| EndOfCall { harmless: Harmless::default(), scrubber: scrubber.clone() });
    if let Some(end) = &end_of_call {
        request.extensions_mut().insert(end.harmless.clone());
        request.extensions_mut().insert(Scrubs(scrubber.clone()));
    }
    let answer = (request.uri().path() == GET_SECRETS).then(|| parting.begin());
    let parting = parting.clone();
    secrets::mark_sensitive(request.headers_mut());
    async move {
        let _end_of_call = end_of_call;
        let response = match judged {
            Ok(()) => routes.call(request).await?,
            Err(problem) => {
                match door {
                    Door::Main(_) => tracing::warn!("{problem}"),
                    // Anybody may ask there, as often as they like: the log is not theirs to fill.
                    Door::Runtime => tracing::debug!("{problem}"),
                }
                Status::from(problem).into_http()
            }
        };
        Ok(response.map(|body| parting.accompany(body, answer)))
    }
}
