//! The scrape listener: HTTP/1.1 on a unix socket or a loopback address, with one request per connection.
//!
//! Idle clients lose their slots to new clients (`places`).

use std::convert::Infallible;
use std::net::TcpListener as StdTcpListener;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::sync::Arc;
use std::time::Duration;

use executor_sys::peer;
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderMap};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::places::{ConnectionSlot, ConnectionSlots, Owner};
use super::{ScrapeFormat, Scraper};

/// Time limit for a connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit for a request head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of a request head, in bytes.
const HEAD_MAX: usize = 16 << 10;
/// Maximum number of header fields of a request.
const FIELDS_MAX: usize = 64;
/// Pause after a failed accept.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// A listening socket for scrapes.
#[derive(Debug)]
pub enum Listener {
    /// A listening unix socket.
    Unix(StdUnixListener),
    /// A TCP socket that listens on a loopback address.
    Tcp(StdTcpListener),
}

enum Accepting {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// A body that is completely in memory.
struct FullBody(Option<Bytes>);

impl hyper::body::Body for FullBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        std::task::Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        hyper::body::SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

/// Serves scrapes until the daemon stops.
///
/// # Errors
/// Returns an error if the runtime cannot register the socket.
pub(crate) fn serve(listener: Listener, scraper: Scraper, stopping: watch::Receiver<bool>) -> std::io::Result<()> {
    let accepting = match listener {
        Listener::Unix(listener) => Accepting::Unix(UnixListener::from_std(listener)?),
        Listener::Tcp(listener) => Accepting::Tcp(TcpListener::from_std(listener)?),
    };
    tokio::spawn(accept(accepting, Arc::new(scraper), stopping));
    Ok(())
}

async fn accept(listener: Accepting, scraper: Arc<Scraper>, mut stopping: watch::Receiver<bool>) {
    let places = ConnectionSlots::default();
    loop {
        // Without a free slot the next client waits in the kernel's queue.
        let free = places.free_at(Instant::now());
        let accepted = async {
            places.until_free(free).await;
            let answer = |owner| (places.enter(owner, Instant::now()), Arc::clone(&scraper));
            match &listener {
                Accepting::Unix(listener) => {
                    let (stream, _) = listener.accept().await?;
                    let uid = peer::credentials(&stream)?.uid;
                    let (place, scraper) = answer(Owner::User(uid));
                    tokio::spawn(serve_one(stream, scraper, place));
                }
                Accepting::Tcp(listener) => {
                    let (stream, address) = listener.accept().await?;
                    let (place, scraper) = answer(Owner::Address(address.ip()));
                    tokio::spawn(serve_one(stream, scraper, place));
                }
            }
            Ok::<_, std::io::Error>(())
        };
        tokio::select! {
            accepted = accepted => if let Err(error) = accepted {
                tracing::debug!(%error, "cannot accept a connection for metrics");
                sleep(ACCEPT_RETRY_DELAY).await;
            },
            () = until_stopping(&mut stopping) => return,
        }
    }
}

async fn until_stopping(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

async fn serve_one(stream: impl AsyncRead + AsyncWrite + Unpin, scraper: Arc<Scraper>, place: ConnectionSlot) {
    let place = Arc::new(place);
    let service = service_fn(|request| {
        let (scraper, place) = (Arc::clone(&scraper), Arc::clone(&place));
        async move {
            place.request_received();
            let response = respond(&scraper, &request).await;
            place.answered(Instant::now());
            Ok::<_, Infallible>(response)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_MAX)
        .max_headers(FIELDS_MAX)
        .keep_alive(false)
        .half_close(false);
    let served = timeout(CONNECTION_TIMEOUT, http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        served = served => match served {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a metrics connection failed"),
            Err(_) => {
                let seconds = CONNECTION_TIMEOUT.as_secs();
                tracing::warn!("closing a connection for metrics, which was open for {seconds} s");
            }
        },
        () = place.lost() => {
            tracing::debug!("closing a slow connection for metrics: another connection needs the slot");
        }
    }
}

async fn respond(scraper: &Scraper, request: &Request<Incoming>) -> Response<FullBody> {
    let refuse = |status: StatusCode, why: &str| {
        let mut response = Response::new(FullBody(Some(Bytes::from(format!("{why}\n")))));
        *response.status_mut() = status;
        response
            .headers_mut()
            .insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("text/plain; charset=utf-8"));
        response
    };
    if request.uri().path() != "/metrics" {
        return refuse(StatusCode::NOT_FOUND, "this address serves /metrics only");
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = refuse(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are allowed");
        response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let form = form(request.headers());
    let text = scraper.text(form).await;
    let mut response = Response::new(FullBody(Some(Bytes::copy_from_slice(text.as_bytes()))));
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(form.content_type()));
    response
}

fn form(fields: &HeaderMap) -> ScrapeFormat {
    let all: Vec<&str> = fields.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    ScrapeFormat::accepted(&all.join(","))
}
