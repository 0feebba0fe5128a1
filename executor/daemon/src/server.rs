//! The server: accepts connections, determines their owners, dispatches their calls, and closes them.
//!
//! tonic's own server is not used: contents of a connection must not stay in memory, so they must not pass through h2
//! (see [`executor_transport::wire`]). A connection is closed by its client, when the daemon stops (gracefully), when
//! other connections need its slot or the memory of its responses, or when its caller loses its permission.
//!
//! There are two unix sockets: one for the control plane, and one for containers. Connections of containers have
//! separate limits: in total, per container, and in time. If configured, a TCP listener with mutual TLS
//! ([`executor_transport::tls`]) also offers the control plane's services.

mod methods;
mod status;
pub mod weight;

use std::convert::Infallible;
use std::net::TcpListener as StdTcpListener;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::sync::Arc;
use std::time::Duration;

use executor_core::idmap::Pool;
use executor_sys::peer::{self, Peer};
use executor_transport::client_socket::ClientSocket;
use executor_transport::linger::LingeringSocket;
use executor_transport::rates::{Rate, Rates};
use executor_transport::slots::{Limits, Owner, Slot, Slots};
use executor_transport::tls::{self, AcceptedStream, Admission, TlsStream};
use executor_transport::wire::body::{Call, ResponseBody};
use executor_transport::wire::budget::{AnswerBudget, AnswerKind, ConnectionBudget, Shares};
use executor_transport::wire::{Calls, FIELDS_MAX, Wire};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;
use tonic::codegen::{Service as _, http};
use tonic::service::Routes;

use crate::access::rules::Rules;
use crate::access::{self, Access, Client, GET_SECRETS, Socket};
use crate::api_error::ApiError;
use crate::config::{Bounds, TcpSettings};
use crate::scrape::http::Listener;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::metrics::calls::CallTimer;
pub(crate) use methods::OTHER_MESSAGE_MAX;
use weight::Weigher;

/// Maximum size of buffered responses of a stream whose client does not read, in bytes.
const SEND_BUFFER: usize = 32 << 10;
/// Interval of keepalive PINGs to an idle client.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(60);
/// Time limit for the client to acknowledge a keepalive PING.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause after a failed accept (out of descriptors).
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Lifetime of a connection that only reports the shortage of descriptors.
const SHORTAGE_LIFETIME: Duration = Duration::from_secs(1);
/// Number of descriptors that are reserved to report a shortage: one for the connection, and one for its
/// [`LingeringSocket`].
const SPARES: usize = 2;
/// Time limit for a client to send the HTTP/2 preface and to acknowledge the settings.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for a client to read a response with secrets, and to read its responses on a closing connection.
const RESPONSE_READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for reading the last responses after the caller has lost its permission.
const REVOKED_READ_TIMEOUT: Duration = Duration::from_secs(1);
/// Idle time before a closing connection is closed, because a call may still arrive.
const IDLE_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum message size on the containers' socket, in bytes. Requests contain only an id.
pub(crate) const RUNTIME_MESSAGE_MAX: usize = 4096;
/// Minimum interval between two log entries about refused connections.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Limits of the containers' socket: each container makes one short call.
const RUNTIME_BOUNDS: Bounds = Bounds { connections: 128, streams: 4, message_bytes: RUNTIME_MESSAGE_MAX };
/// Maximum number of concurrent connections of one container on the containers' socket.
const RUNTIME_EACH: usize = 32;
/// Accept pace of the containers' socket: clients that connect as fast as possible take only a fraction of one CPU from
/// the control plane.
const RUNTIME_PACE: AcceptPace = AcceptPace { pause: Duration::from_millis(1), refused: 32 };
/// Connection rate of one container: a container connects once, and again after a rotation.
const RUNTIME_RATE: Rate = Rate { burst: 64, interval: Duration::from_millis(20) };
/// Maximum lifetime of a connection on the containers' socket.
const RUNTIME_LIFETIME: Duration = Duration::from_secs(10);

/// Sockets on which the daemon listens.
#[derive(Debug)]
pub struct Listeners {
    /// The control plane's socket.
    pub main: StdUnixListener,
    /// The socket for containers with a runtime token, if it could be created.
    pub runtime: Option<StdUnixListener>,
    pub tcp: Option<StdTcpListener>,
    /// The metrics socket, if configured.
    pub metrics: Option<Listener>,
}

/// Pace at which connections are accepted.
#[derive(Clone, Copy, Debug)]
struct AcceptPace {
    /// Pause after an accepted connection.
    pause: Duration,
    /// Number of consecutive refused connections without a pause. A refusal needs little CPU time, and a pause after
    /// each refusal would delay the connections that wait in the kernel's queue.
    refused: u32,
}

/// A listening socket with its services and limits.
#[derive(Debug)]
pub(crate) struct Endpoint {
    listener: UnixListener,
    routes: Routes,
    socket: Socket,
    bounds: Bounds,
    limits: Limits,
    /// Host ids of the containers' user namespaces.
    pool: Option<Pool>,
    lifetime: Option<Duration>,
    pace: Option<AcceptPace>,
    metrics: Arc<Metrics>,
}

impl Endpoint {
    /// Creates the control plane's endpoint.
    pub(crate) fn main(
        listener: UnixListener,
        routes: Routes,
        access: Access,
        bounds: Bounds,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (socket, limits) = (Socket::Main(access), limits_of_operators(bounds));
        Self { listener, routes, socket, bounds, limits, pool: None, lifetime: None, pace: None, metrics }
    }

    /// Creates the containers' endpoint. The pool holds the host ids of their user namespaces.
    pub(crate) fn runtime(listener: UnixListener, routes: Routes, pool: Option<Pool>, metrics: Arc<Metrics>) -> Self {
        let all = RUNTIME_BOUNDS.connections;
        Self {
            listener,
            routes,
            socket: Socket::Runtime,
            bounds: RUNTIME_BOUNDS,
            limits: Limits { all, each: RUNTIME_EACH, users: all / 2, spare: 64, few: 2, few_of_root: 2 },
            pool,
            lifetime: Some(RUNTIME_LIFETIME),
            pace: Some(RUNTIME_PACE),
            metrics,
        }
    }

    fn owner(&self, peer: &Peer) -> Owner {
        Owner::new(peer.uid, self.pool.as_ref())
    }
}

/// Limits for operators' connections: one owner can use all slots, but other owners still get a few.
fn limits_of_operators(Bounds { connections: all, .. }: Bounds) -> Limits {
    Limits { all, each: all, users: usize::MAX, spare: 48, few: 4, few_of_root: 16 }
}

/// Serves connections until the daemon stops, and then waits until every connection is closed. The caller must limit
/// the wait.
pub(crate) async fn serve(endpoint: Endpoint, mut stopping: watch::Receiver<bool>) {
    let routes = endpoint.routes.clone().prepare();
    let shares = match endpoint.socket {
        Socket::Main(_) => Shares::WITH_ROOT,
        Socket::Runtime => Shares::ONE_CONNECTION,
    };
    let (slots, budget) = (Slots::new(endpoint.limits), AnswerBudget::new(shares));
    let (alive, mut ended) = mpsc::channel::<Infallible>(1);
    let mut refusals = Refusals::default();
    // Limit the rate of containers only: operators are trusted to connect at a reasonable rate.
    let mut rates = endpoint.pace.map(|_| Rates::new(RUNTIME_RATE));
    let mut unpaced = 0;
    let mut spares = Vec::new();
    while !*stopping.borrow() {
        if spares.is_empty() {
            spares = spare(&endpoint.listener);
        }
        if let Some(AcceptPace { pause, refused }) = endpoint.pace
            && unpaced == 0
        {
            sleep(pause).await;
            unpaced = refused;
        }
        let accepted = tokio::select! {
            accepted = endpoint.listener.accept() => accepted,
            _ = stopping.changed() => continue,
        };
        // If the limit on descriptors is reached, accept the connection with a reserved descriptor, and refuse its
        // calls with the reason.
        let mut shortage = None;
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::error!(%error, "cannot accept a connection");
                spares.clear();
                shortage = Some(ApiError::from_system("cannot accept a connection", &error));
                match timeout(ACCEPT_RETRY_DELAY, endpoint.listener.accept()).await {
                    Ok(Ok((stream, _))) => stream,
                    _ => {
                        sleep(ACCEPT_RETRY_DELAY).await;
                        continue;
                    }
                }
            }
        };
        let peer = match peer::credentials(&stream) {
            Ok(peer) => peer,
            Err(error) => {
                tracing::warn!(%error, "cannot read a client's credentials");
                continue;
            }
        };
        let calls = Calls::new(endpoint.bounds.streams);
        let owner = endpoint.owner(&peer);
        let admitted = rates.as_mut().is_none_or(|rates| rates.admit(owner, Instant::now().into_std()));
        let Some(slot) = admitted.then(|| slots.take(owner, &calls)).flatten() else {
            unpaced = unpaced.saturating_sub(1);
            endpoint.metrics.connection_refused(endpoint.socket.name());
            refusals.log(owner, endpoint.limits);
            continue;
        };
        unpaced = 0;
        let connection = Connection {
            routes: routes.clone(),
            client: Client::Local(endpoint.socket, peer),
            bounds: endpoint.bounds,
            calls,
            budget: budget.connection(owner.number(), matches!(endpoint.socket, Socket::Main(_)) && owner.is_root()),
            slot,
            lifetime: if shortage.is_some() { Some(SHORTAGE_LIFETIME) } else { endpoint.lifetime },
            shortage: shortage.clone(),
            admission: None,
            stopping: stopping.clone(),
            metrics: Arc::clone(&endpoint.metrics),
            _alive: alive.clone(),
        };
        let serving = async {
            match stream
                .into_std()
                .and_then(|stream| Ok((LingeringSocket::from_stream(&stream)?, ClientSocket::new(stream)?)))
            {
                Ok((lingering, stream)) => connection.serve(lingering, stream).await,
                Err(error) => tracing::error!(%error, "cannot serve a connection"),
            }
        };
        if shortage.is_none() {
            tokio::spawn(serving);
            continue;
        }
        serving.await;
        sleep(ACCEPT_RETRY_DELAY).await;
    }
    drop((endpoint, alive));
    let _ = ended.recv().await; // nothing is sent: this resolves when every connection is closed
}

/// Serves callers over TCP. See [`serve`].
///
/// # Errors
/// Returns an error if the handshake thread cannot be created.
pub(crate) fn serve_tcp(
    listener: StdTcpListener,
    settings: &TcpSettings,
    certificates: Arc<tls::Certificates<Rules>>,
    routes: Routes,
    bounds: Bounds,
    metrics: Arc<Metrics>,
    stopping: watch::Receiver<bool>,
) -> std::io::Result<impl Future<Output = ()> + use<>> {
    let counted = Arc::clone(&metrics);
    let mut accepted_streams =
        tls::open(listener, settings.limits, certificates, move || counted.stranger_refused(), stopping.clone())?;
    let routes = routes.prepare();
    Ok(async move {
        let limits = limits_of_operators(bounds);
        let (slots, budget) = (Slots::new(limits), AnswerBudget::new(Shares::WITHOUT_ROOT));
        let (alive, mut ended) = mpsc::channel::<Infallible>(1);
        let mut refusals = Refusals::default();
        while let Some(AcceptedStream { caller, stream, session, admission, place }) = accepted_streams.recv().await {
            let calls = Calls::new(bounds.streams);
            let owner = Owner::Caller(caller.number);
            let Some(slot) = slots.take(owner, &calls) else {
                metrics.connection_refused(access::TCP);
                refusals.log(owner, limits);
                continue;
            };
            let connection = Connection {
                routes: routes.clone(),
                client: Client::Remote(caller),
                bounds,
                calls,
                budget: budget.connection(owner.number(), false),
                slot,
                lifetime: None,
                shortage: None,
                admission: Some(admission),
                stopping: stopping.clone(),
                metrics: Arc::clone(&metrics),
                _alive: alive.clone(),
            };
            tokio::spawn(async move {
                match LingeringSocket::from_stream(&stream)
                    .and_then(|lingering| Ok((lingering, ClientSocket::new(stream)?)))
                {
                    Ok((lingering, socket)) => connection.serve(lingering, TlsStream::new(socket, session)).await,
                    Err(error) => tracing::error!(%error, "cannot serve a connection"),
                }
                drop(place);
            });
        }
        drop(alive);
        let _ = ended.recv().await;
    })
}

/// Opens the reserved descriptors, which are closed to accept a connection when the limit on descriptors is reached.
fn spare(listener: &UnixListener) -> Vec<OwnedFd> {
    (0..SPARES).map_while(|_| listener.as_fd().try_clone_to_owned().ok()).collect()
}

/// Counts refused connections, and logs them at intervals.
#[derive(Default)]
struct Refusals {
    reported: Option<Instant>,
    since: usize,
}

impl Refusals {
    fn log(&mut self, owner: Owner, limits: Limits) {
        self.since += 1;
        if self.reported.is_none_or(|reported| reported.elapsed() >= REFUSAL_LOG_INTERVAL) {
            let Limits { all, each, .. } = limits;
            tracing::warn!(
                ?owner,
                refused = self.since,
                all,
                each,
                "refused connections: no connection slot is free, the owner has no slot left, or the owner connects too often"
            );
            *self = Self { reported: Some(Instant::now()), since: 0 };
        }
    }
}

struct Connection {
    routes: Routes,
    client: Client,
    bounds: Bounds,
    calls: Calls,
    budget: ConnectionBudget,
    /// Slot of the connection, which is released when the connection is closed.
    slot: Slot,
    lifetime: Option<Duration>,
    /// Error for every call, if no call can be executed.
    shortage: Option<ApiError>,
    /// Admission of a caller over TCP.
    admission: Option<Admission<Rules>>,
    stopping: watch::Receiver<bool>,
    metrics: Arc<Metrics>,
    _alive: mpsc::Sender<Infallible>,
}

impl Connection {
    async fn serve(self, lingering: LingeringSocket, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let Self { routes, client, bounds, calls, budget, slot, .. } = self;
        let Self { lifetime, shortage, admission, mut stopping, metrics, _alive, .. } = self;
        let _open = metrics.connected(client.socket_label());
        let service = {
            let (calls, budget, client) = (calls.clone(), budget.clone(), client.clone());
            service_fn(move |request| {
                let check = |path: &str| {
                    client.check(path)?;
                    shortage.clone().map_or(Ok(()), Err)
                };
                call(routes.clone(), bounds, (&check, &client), (&calls, &budget, &metrics), request)
            })
        };
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .max_concurrent_streams(bounds.streams)
            .max_header_list_size(FIELDS_MAX as u32)
            .header_table_size(0)
            .auto_date_header(false)
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT);
        let mut connection = Box::pin(http.serve_connection(TokioIo::new(Wire::new(stream, &calls)), service));
        let too_old = async {
            match lifetime {
                Some(lifetime) => sleep(lifetime).await,
                None => std::future::pending().await,
            }
        };
        let revoked = async {
            match (admission, &client) {
                (Some(admission), Client::Remote(caller)) => {
                    admission.revoked(caller.subscribe(), || caller.check_permission()).await
                }
                _ => std::future::pending().await,
            }
        };
        let mut patience = RESPONSE_READ_TIMEOUT;
        let ungreeted = async {
            sleep(PREFACE_TIMEOUT).await;
            if calls.is_settled() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            over = connection.as_mut() => return log_end(over),
            () = until_stopping(&mut stopping) => {
                connection.as_mut().graceful_shutdown();
                return log_end(connection.await);
            }
            () = too_old => {}
            why = revoked => {
                tracing::warn!(%client, "closing a caller's connection: {why}");
                patience = REVOKED_READ_TIMEOUT;
            }
            () = slot.lost() => {
                tracing::debug!(%client, "closing an idle connection: another connection needs the slot");
                if !calls.is_settled() {
                    return; // the client has not sent anything yet
                }
            }
            () = ungreeted => {
                return tracing::debug!(%client, "closing a connection: the client did not start HTTP/2 in time");
            }
            () = calls.secrets_not_taken(RESPONSE_READ_TIMEOUT) => {
                return tracing::warn!(%client, "closing a connection: the client did not read a response with secrets");
            }
            bytes = budget.stalled(|| calls.unwritten()) => {
                return tracing::warn!(%client, bytes, "closing a connection: the client does not read its responses");
            }
        }
        connection.as_mut().graceful_shutdown();
        let deadline = Instant::now() + patience;
        tokio::select! {
            biased; // prefer pending writes
            over = connection.as_mut() => log_end(over),
            // After a quiet time the connection is closed, so that its memory is freed even if the client does not
            // close it.
            () = quiet(&calls, deadline) => {}
        }
        drop(connection);
        if calls.has_called() {
            lingering.until_read(deadline).await;
        }
    }
}

async fn until_stopping(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// Resolves when the connection has had no calls and no unread responses for [`IDLE_TIMEOUT`], at the latest at the
/// deadline.
async fn quiet(calls: &Calls, deadline: Instant) {
    let is_quiet = || calls.is_idle() && calls.unwritten().0 == 0;
    let moment = async {
        loop {
            let was = is_quiet();
            sleep(IDLE_TIMEOUT).await;
            if was && is_quiet() {
                return;
            }
        }
    };
    let _ = timeout(deadline - Instant::now(), moment).await;
}

fn log_end(over: hyper::Result<()>) {
    if let Err(error) = over {
        tracing::debug!(%error, "a connection was closed by an error");
    }
}

/// Function that returns an error if the client may not call the method at a path.
type CallCheck<'a> = dyn Fn(&str) -> Result<(), ApiError> + 'a;

/// Checks a call and dispatches it to its service.
fn call(
    mut routes: Routes,
    bounds: Bounds,
    (check, client): (&CallCheck<'_>, &Client),
    (calls, budget, metrics): (&Calls, &ConnectionBudget, &Arc<Metrics>),
    shadow: http::Request<Incoming>,
) -> impl Future<Output = Result<http::Response<ResponseBody<CallTimer>>, Status>> + use<> {
    let call = Call::new(calls, shadow);
    let checked = call.as_ref().map(|call| check(&call.request.path));
    let timer = call.as_ref().map(|call| metrics.call(&call.request.path));
    let (budget, client) = (budget.clone(), client.clone());
    async move {
        // If there is no call, h2 has closed the stream, or rejects it.
        let (Some(call), Some(checked), Some(timer)) = (call, checked, timer) else {
            return Err(Status::resource_exhausted("the stream is closed"));
        };
        let size = call.request.size;
        if size > FIELDS_MAX {
            let why = format!("the metadata is {size} bytes, counted as in RFC 9113; the maximum is {FIELDS_MAX}");
            return Ok(call.refuse().answer(Status::resource_exhausted(why).into_http(), None, false, timer));
        }
        if let Err(problem) = checked {
            match client.uses_runtime_socket() {
                false => tracing::warn!("{problem}"),
                // Any process may make calls at any rate, so denials must not fill the log.
                true => tracing::debug!("{problem}"),
            }
            return Ok(call.refuse().answer(Status::from(problem).into_http(), None, false, timer));
        }
        let is_strict = match methods::is_strict(&call.request.fields) {
            Ok(is_strict) => is_strict,
            Err(problem) => return Ok(call.refuse().answer(Status::from(problem).into_http(), None, false, timer)),
        };
        let kind = methods::answer_kind(&call.request.path);
        let permit = match budget.reserve(kind).await {
            Ok(permit) => permit,
            Err(why) => {
                return Ok(call.refuse().answer(Status::resource_exhausted(why).into_http(), None, false, timer));
            }
        };
        let secrets = call.request.path == GET_SECRETS;
        let most = methods::message_max(&call.request.path, bounds.message_bytes);
        let streams_requests = methods::streams_requests(&call.request.path);
        let weigher = Weigher::from_method(&call.request.path).strict(is_strict);
        let (mut request, answering) = call.open(most, streams_requests, weigher);
        request.extensions_mut().insert(client);
        let Ok(response) = routes.call(request).await;
        Ok(match kind == AnswerKind::Stream {
            true => answering.answer(response, Some(permit), secrets, timer),
            false => answering.answer_whole(response, permit, secrets, timer).await,
        })
    }
}
