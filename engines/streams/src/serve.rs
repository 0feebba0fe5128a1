//! Listens for clients, and upgrades their connections to SPDY or WebSocket.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use hyper::service::service_fn;
use hyper::{Method, Request as HttpRequest, Response, StatusCode, http};
use hyper_util::rt::{TokioIo, TokioTimer};
use sha1::{Digest, Sha1};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::activity::Activity;
use crate::tokens::{Kind, RegisterError, Request, Tokens};
use crate::{Connect, Handler, Limits, Wanted, exec, forward, websocket};

/// Time limit for the headers of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit from the connection to the upgrade.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of the headers of a request, in bytes.
const HEADER_SIZE: usize = 16 << 10;

/// Interval at which expired requests are deleted.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(5);
/// Pause after a failed `accept`, for example without free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const ACCEPTED_PROTOCOLS: HeaderName = HeaderName::from_static("x-accepted-stream-protocol-versions");
const WEBSOCKET_KEY: HeaderName = HeaderName::from_static("sec-websocket-key");
const WEBSOCKET_ACCEPT: HeaderName = HeaderName::from_static("sec-websocket-accept");
const WEBSOCKET_PROTOCOL: HeaderName = HeaderName::from_static("sec-websocket-protocol");
const WEBSOCKET_VERSION: HeaderName = HeaderName::from_static("sec-websocket-version");

/// GUID of RFC 6455.
const WEBSOCKET_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Registers requests. Clones share their requests.
#[derive(Clone)]
pub struct Streams {
    tokens: Arc<Tokens>,
    address: SocketAddr,
    owner: Arc<str>,
}

/// Serves the registered requests.
pub struct Server {
    listener: TcpListener,
    tokens: Arc<Tokens>,
    limits: Limits,
}

impl Streams {
    /// Listens on a port of 127.0.0.1. Port 0 selects a free port. No request is served before [`Server::run`].
    ///
    /// # Errors
    ///
    /// Returns an error if the port is in use.
    pub async fn bind(port: u16, limits: Limits) -> io::Result<(Self, Server)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let address = listener.local_addr()?;
        let tokens = Arc::new(Tokens::new(limits.clone()));
        let owner = Arc::from("");
        Ok((Self { tokens: Arc::clone(&tokens), address, owner }, Server { listener, tokens, limits }))
    }

    /// Returns a handle that registers requests for an owner. [`Streams::revoke`] revokes the requests of an owner.
    #[must_use]
    pub fn owned_by(&self, owner: &str) -> Self {
        Self { owner: Arc::from(owner), ..self.clone() }
    }

    /// Deletes the requests of an owner whose clients have not connected. The requests' tokens become invalid.
    pub fn revoke(&self, owner: &str) {
        self.tokens.revoke(owner);
    }

    /// Registers an exec request and returns its URL.
    ///
    /// # Errors
    ///
    /// Returns an error if the streams are invalid or too many requests wait for their clients.
    pub fn exec(&self, wanted: Wanted, handler: impl Handler) -> Result<String, RegisterError> {
        self.register(Kind::Exec, Request::Process { wanted, handler: Box::new(handler) })
    }

    /// Registers an attach request and returns its URL.
    ///
    /// # Errors
    ///
    /// Returns an error if the streams are invalid or too many requests wait for their clients.
    pub fn attach(&self, wanted: Wanted, handler: impl Handler) -> Result<String, RegisterError> {
        self.register(Kind::Attach, Request::Process { wanted, handler: Box::new(handler) })
    }

    /// Registers a port-forward request and returns its URL.
    ///
    /// # Errors
    ///
    /// Returns an error if too many requests wait for their clients.
    pub fn port_forward(&self, connect: Arc<dyn Connect>) -> Result<String, RegisterError> {
        self.register(Kind::PortForward, Request::Ports(connect))
    }

    fn register(&self, kind: Kind, request: Request) -> Result<String, RegisterError> {
        let token = self.tokens.register(kind, &self.owner, request)?;
        Ok(format!("http://{}/{}/{token}", self.address, kind.path()))
    }
}

impl Server {
    /// Serves connections. Dropping the future closes all connections and cancels their handlers.
    pub async fn run(self) {
        let slots = Arc::new(Semaphore::new(self.limits.connections));
        let mut connections = JoinSet::new();
        let tokens = Arc::clone(&self.tokens);
        connections.spawn(async move {
            loop {
                sleep(EXPIRY_INTERVAL).await;
                tokens.expire();
            }
        });
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, Arc::clone(&self.tokens), self.limits.clone(), slot));
                }
                Err(err) => {
                    tracing::warn!(%err, "cannot accept a streaming connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
            while connections.try_join_next().is_some() {}
        }
    }
}

async fn connection(stream: TcpStream, tokens: Arc<Tokens>, limits: Limits, _slot: OwnedSemaphorePermit) {
    let _ = stream.set_nodelay(true);
    let Ok(socket) = stream.as_fd().try_clone_to_owned() else { return };
    let accepted = std::sync::Mutex::new(None);
    let service = service_fn(|mut request: HttpRequest<Incoming>| {
        let response = match negotiate(&request, &tokens) {
            Ok((response, session)) => {
                let upgrade = hyper::upgrade::on(&mut request);
                *accepted.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some((upgrade, session));
                response
            }
            Err(refusal) => refusal.response(),
        };
        async move { Ok::<_, Infallible>(response) }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_SIZE)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let served = timeout(UPGRADE_TIMEOUT, serving).await;
    let accepted = accepted.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (Ok(Ok(())), Some((upgrade, session))) = (served, accepted) else { return };
    let Ok(upgraded) = upgrade.await else { return };
    if let Err(err) = run(TokioIo::new(upgraded), session, &limits, socket).await {
        tracing::debug!(%err, "a streaming session ended early");
    }
}

struct Session {
    request: Request,
    protocol: &'static str,
    websocket: bool,
}

async fn run(
    io: TokioIo<hyper::upgrade::Upgraded>,
    session: Session,
    limits: &Limits,
    socket: OwnedFd,
) -> io::Result<()> {
    let activity = Activity::new(limits.idle, Some(Arc::new(socket)));
    let Session { request, protocol, websocket } = session;
    match (request, websocket) {
        (Request::Process { wanted, handler }, false) => {
            exec::serve(io, wanted, handler, protocol, limits, &activity).await
        }
        (Request::Process { wanted, handler }, true) => {
            websocket::serve(io, wanted, handler, protocol, &activity).await
        }
        (Request::Ports(connect), false) => forward::serve(io, connect, limits, &activity).await,
        (Request::Ports(connect), true) => websocket::tunnel(io, connect, limits, &activity).await,
    }
}

struct Refusal {
    status: StatusCode,
    reason: String,
    accepted: &'static [&'static str],
}

impl Refusal {
    fn new(status: StatusCode, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), accepted: &[] }
    }

    fn response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::from(self.reason)));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        for protocol in self.accepted {
            response.headers_mut().append(ACCEPTED_PROTOCOLS, HeaderValue::from_static(protocol));
        }
        response
    }
}

/// Accepts or refuses an upgrade. Only an accepted upgrade invalidates the token.
fn negotiate(request: &HttpRequest<Incoming>, tokens: &Tokens) -> Result<(Response<Full<Bytes>>, Session), Refusal> {
    let path = request.uri().path();
    let unknown = || Refusal::new(StatusCode::NOT_FOUND, "unknown, used or expired token\n");
    let kind = tokens.find(path).ok_or_else(unknown)?;
    if !matches!(*request.method(), Method::GET | Method::POST) {
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "use GET or POST\n"));
    }
    let headers = request.headers();
    let wants = |protocol: &str| {
        values(headers, &CONNECTION).any(|value| value.eq_ignore_ascii_case("upgrade"))
            && values(headers, &UPGRADE).any(|value| value.eq_ignore_ascii_case(protocol))
    };
    let (websocket, response, protocol) = if wants("websocket") {
        let (response, protocol) = websocket_response(request, kind)?;
        (true, response, protocol)
    } else if wants("SPDY/3.1") {
        let (response, protocol) = spdy_response(headers, kind)?;
        (false, response, protocol)
    } else {
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "upgrade to SPDY/3.1 or websocket\n"));
    };
    let response = response
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(CONNECTION, "Upgrade")
        .body(Full::default())
        .map_err(|err| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, err.to_string()))?;
    let request = tokens.take(path).ok_or_else(unknown)?;
    Ok((response, Session { request, protocol, websocket }))
}

fn spdy_response(headers: &HeaderMap, kind: Kind) -> Result<(http::response::Builder, &'static str), Refusal> {
    let accepted: &[&str] = if kind == Kind::PortForward { &[forward::PROTOCOL] } else { &exec::PROTOCOLS };
    let response = Response::builder().header(UPGRADE, "SPDY/3.1");
    if !headers.contains_key(STREAM_PROTOCOL) {
        // As in the kubelet, a client that names no protocol gets the oldest protocol.
        return Ok((response, accepted[accepted.len() - 1]));
    }
    let protocol = select(headers, &STREAM_PROTOCOL, accepted).ok_or(Refusal {
        status: StatusCode::FORBIDDEN,
        reason: format!("no supported stream protocol; use one of {}\n", accepted.join(", ")),
        accepted,
    })?;
    Ok((response.header(STREAM_PROTOCOL, protocol), protocol))
}

fn websocket_response(
    request: &HttpRequest<Incoming>,
    kind: Kind,
) -> Result<(http::response::Builder, &'static str), Refusal> {
    let headers = request.headers();
    let bad = |reason: &str| Refusal::new(StatusCode::BAD_REQUEST, reason);
    if request.method() != Method::GET {
        return Err(bad("use GET for a WebSocket\n"));
    }
    if headers.get(WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        return Err(bad("unsupported version of WebSocket; use 13\n"));
    }
    let key = headers.get(WEBSOCKET_KEY).ok_or_else(|| bad("Sec-WebSocket-Key is missing\n"))?;
    let digest = Sha1::new().chain_update(key).chain_update(WEBSOCKET_GUID).finalize();
    let response = Response::builder().header(UPGRADE, "websocket").header(WEBSOCKET_ACCEPT, STANDARD.encode(digest));
    let accepted: &[&str] = if kind == Kind::PortForward { &[websocket::TUNNEL] } else { &websocket::PROTOCOLS };
    if !headers.contains_key(WEBSOCKET_PROTOCOL) && kind != Kind::PortForward {
        return Ok((response, ""));
    }
    let protocol = select(headers, &WEBSOCKET_PROTOCOL, accepted).ok_or_else(|| {
        Refusal::new(StatusCode::FORBIDDEN, format!("no supported protocol; use one of {}\n", accepted.join(", ")))
    })?;
    Ok((response.header(WEBSOCKET_PROTOCOL, protocol), protocol))
}

/// Returns the first protocol of the client that the server accepts.
fn select(headers: &HeaderMap, name: &HeaderName, accepted: &[&'static str]) -> Option<&'static str> {
    values(headers, name)
        .find_map(|value| accepted.iter().find(|protocol| **protocol == value && !value.is_empty()))
        .copied()
}

/// Returns the comma-separated values of a header.
fn values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}
