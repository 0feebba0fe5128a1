//! Serves calls on a unix socket that only root can connect to.
//!
//! Requests hold environments and passwords, so their content stays out of h2 ([`executor_transport::wire`]).

use std::convert::Infallible;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use executor_transport::client_socket::ClientSocket;
use executor_transport::slots::{Limits, Owner, Slot, Slots};
use executor_transport::wire::body::{Call, CallObserver, MessageCheck, ResponseBody};
use executor_transport::wire::{Calls, FIELDS_MAX, Wire};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tonic::Status;
use tonic::codegen::Service as _;
use tonic::codegen::http::{self, HeaderMap};
use tonic::service::Routes;

/// Maximum size of a message, in bytes (rule C1).
const MESSAGE_MAX: usize = 16 << 20;
/// Limits on simultaneous connections. At the limit, the oldest idle connection is closed for a new connection, and its
/// client reconnects.
const LIMITS: Limits = Limits { all: 512, each: 512, users: 512, spare: 0, few: 0, few_of_root: 0 };
/// Maximum number of concurrent calls on a connection. A kubelet makes a few calls for each pod.
const STREAMS: u32 = 1024;
/// Maximum size of buffered responses of a stream whose client does not read, in bytes.
const SEND_BUFFER: usize = 32 << 10;
/// Interval of PINGs to an idle client.
const PING_INTERVAL: Duration = Duration::from_secs(60);
/// Time limit for the response to a PING.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause after a failed accept, for example because no descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time limit of a call without a limit from the caller: the kubelet's limit for RunPodSandbox.
const CALL_TIMEOUT: Duration = Duration::from_secs(240);
/// Time limit for calls to complete when the process stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// The listening socket. The socket is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Creates the socket with mode 0600. The socket of a process that has exited is replaced.
    ///
    /// # Errors
    /// Returns an error if another process listens on the socket, or the socket cannot be created.
    pub(crate) fn bind(path: &Path) -> Result<Self, String> {
        let at = |error: io::Error| format!("cannot listen on {}: {error}", path.display());
        if let Some(directory) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(at)?;
        }
        if std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(format!("cannot listen on {}: another process listens on this socket", path.display()));
            }
            std::fs::remove_file(path).map_err(at)?;
        }
        let listener = StdUnixListener::bind(path).map_err(at)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(at)?;
        listener.set_nonblocking(true).map_err(at)?;
        let listener = UnixListener::from_std(listener).map_err(at)?;
        Ok(Self { listener, path: path.to_owned() })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves calls until the process stops, and then waits for calls to complete, at most [`SHUTDOWN_TIMEOUT`].
pub(crate) async fn serve(socket: Socket, routes: Routes, mut stopping: watch::Receiver<bool>) {
    let routes = routes.prepare();
    let slots = Slots::new(LIMITS);
    let (alive, mut ended) = mpsc::channel::<Infallible>(1);
    loop {
        let stream = tokio::select! {
            accepted = socket.listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::error!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            () = until_stopping(&mut stopping) => break,
        };
        let calls = Calls::new(STREAMS);
        let Some(slot) = slots.take(Owner::User(0), &calls) else {
            tracing::warn!(all = LIMITS.all, "refused a connection: all connections have calls in progress");
            continue;
        };
        let (routes, stopping, alive) = (routes.clone(), stopping.clone(), alive.clone());
        tokio::spawn(async move {
            if let Err(error) = connection(stream, calls, slot, routes, stopping).await {
                tracing::debug!(%error, "a connection ended with an error");
            }
            drop(alive);
        });
    }
    drop((socket, alive));
    let _ = timeout(SHUTDOWN_TIMEOUT, ended.recv()).await; // the channel closes with the last connection
}

async fn connection(
    stream: UnixStream,
    calls: Calls,
    slot: Slot,
    routes: Routes,
    mut stopping: watch::Receiver<bool>,
) -> io::Result<()> {
    let socket = ClientSocket::new(stream.into_std()?)?;
    let service = {
        let calls = calls.clone();
        service_fn(move |shadow| call(routes.clone(), &calls, shadow))
    };
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(FIELDS_MAX as u32)
        .header_table_size(0)
        .auto_date_header(false)
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    let mut serving = Box::pin(http.serve_connection(TokioIo::new(Wire::new(socket, &calls)), service));
    tokio::select! {
        over = serving.as_mut() => return over.map_err(io::Error::other),
        () = until_stopping(&mut stopping) => {}
        () = slot.lost() => {
            if !calls.has_called() {
                return Ok(()); // the client has not started HTTP/2
            }
        }
    }
    serving.as_mut().graceful_shutdown();
    serving.await.map_err(io::Error::other)
}

async fn until_stopping(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// Dispatches a call to the service that its path names.
fn call(
    mut routes: Routes,
    calls: &Calls,
    shadow: http::Request<Incoming>,
) -> impl Future<Output = Result<http::Response<ResponseBody<Unobserved>>, Status>> + use<> {
    let call = Call::new(calls, shadow);
    async move {
        // Without a call, h2 has closed the stream or rejects it.
        let call = call.ok_or_else(|| Status::resource_exhausted("the stream is closed"))?;
        if call.request.size > FIELDS_MAX {
            let why = format!("the metadata is {} bytes; the maximum is {FIELDS_MAX}", call.request.size);
            return Ok(call.refuse().answer(Status::resource_exhausted(why).into_http(), None, false, Unobserved));
        }
        let (request, responder) = call.open(MESSAGE_MAX, false, Unchecked);
        let limit = limit(request.uri().path(), request.headers());
        let response = match limit {
            None => routes.call(request).await,
            Some(limit) => match timeout(limit, routes.call(request)).await {
                Ok(response) => response,
                Err(_) => {
                    let late = format!("the call has not completed within {} ms", limit.as_millis());
                    Ok(Status::deadline_exceeded(late).into_http())
                }
            },
        };
        let Ok(response) = response;
        Ok(responder.answer(response, None, false, Unobserved))
    }
}

/// Returns the time limit of a call: the caller's, or else [`CALL_TIMEOUT`], so that a call returns even if executord
/// does not respond. Calls whose duration depends on the caller or the container have no default limit.
fn limit(path: &str, headers: &HeaderMap) -> Option<Duration> {
    let given = headers.get("grpc-timeout").and_then(|value| parse_timeout(value.to_str().ok()?));
    let method = path.rsplit('/').next().unwrap_or(path);
    let is_unlimited = matches!(method, "ExecSync" | "GetContainerEvents" | "PullImage" | "StopContainer");
    given.or((!is_unlimited).then_some(CALL_TIMEOUT))
}

/// Parses the header `grpc-timeout`: at most 8 digits and a unit.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 =
        digits.parse().ok().filter(|_| digits.len() <= 8 && digits.bytes().all(|b| b.is_ascii_digit()))?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Accepts every message, because only root can connect.
#[derive(Debug)]
struct Unchecked;

impl MessageCheck for Unchecked {
    fn check(&self, _: &[u8]) -> Result<(), Status> {
        Ok(())
    }
}

#[derive(Debug)]
struct Unobserved;

impl CallObserver for Unobserved {
    fn response_fields(&mut self, _: &HeaderMap) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule C16: the caller's time limit takes precedence over the default.
    #[test]
    fn callers_limits_come_first() {
        let given = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", http::HeaderValue::from_static(text));
            headers
        };
        let limited = |path: &str, headers: &HeaderMap| limit(path, headers).map(|limit| limit.as_millis());
        let (pull, create) = ("/runtime.v1.ImageService/PullImage", "/runtime.v1.RuntimeService/CreateContainer");
        assert_eq!(limited(pull, &given("250m")), Some(250));
        assert_eq!(limited(create, &given("2M")), Some(120_000));
        assert_eq!((limited(pull, &HeaderMap::new()), limited(create, &HeaderMap::new())), (None, Some(240_000)));
        for malformed in ["", "m", "1", "1x", "+1S", "123456789S"] {
            assert_eq!(parse_timeout(malformed), None, "{malformed}");
        }
    }
}
