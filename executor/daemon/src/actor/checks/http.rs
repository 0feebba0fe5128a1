//! Sends the HTTP request of a check. Only the response head is read, with size limits: the peer is a tenant's program.

use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};
use std::{error, io};

use executor_core::plan::HttpProbe;
use hyper::Request;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, USER_AGENT};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Maximum size of a response head, in bytes.
const HEAD_MAX: usize = 16 << 10;
/// Maximum number of headers in a response.
const HEADERS_MAX: usize = 100;
/// Maximum number of bytes that are read. A peer may send any number of interim (1xx) responses before the final head.
const READ_MAX: usize = 64 << 10;

/// Sends the request, and checks the status of the response.
///
/// # Errors
/// Returns a short reason, without text from the peer, if the check fails.
pub(super) async fn check(stream: TcpStream, to: SocketAddr, probe: &HttpProbe) -> Result<(), String> {
    let failed = |error: &(dyn error::Error + 'static)| executor_core::errors::chain(error);
    let mut request = Request::get(&*probe.path);
    if !probe.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        request = request.header(HOST, to.to_string());
    }
    if !probe.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("user-agent")) {
        request = request.header(USER_AGENT, concat!("executord/", env!("CARGO_PKG_VERSION")));
    }
    let headers = probe.headers.iter();
    let request =
        headers.fold(request.header(CONNECTION, "close"), |request, (name, value)| request.header(name, value));
    let request = request.body(String::new()).map_err(|error| failed(&error))?;
    let mut builder = http1::Builder::new();
    builder.max_headers(HEADERS_MAX).max_buf_size(HEAD_MAX);
    let bounded = TokioIo::new(Bounded { stream, room: READ_MAX, asked: false, reader: None });
    let (mut sender, connection) = builder.handshake(bounded).await.map_err(|error| failed(&error))?;
    let (mut answer, mut connection) = (pin!(sender.send_request(request)), pin!(connection));
    let mut over = false;
    let answer = loop {
        tokio::select! {
            biased;
            answer = &mut answer => break answer,
            // The response ends when the server closes the connection.
            _ = &mut connection, if !over => over = true,
        }
    };
    let status = answer.map_err(|error| failed(&error))?.status().as_u16();
    if probe.passes(status) { Ok(()) } else { Err(format!("received status code {status}")) }
}

/// A connection with a byte limit. Reads start only after the request is written, because some servers respond before
/// the request, and the HTTP client reports such a response as an error.
struct Bounded {
    stream: TcpStream,
    room: usize,
    asked: bool,
    reader: Option<Waker>,
}

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.asked {
            self.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        if self.room == 0 {
            return Poll::Ready(Err(io::Error::other(format!(
                "the response head is larger than the maximum of {READ_MAX} bytes"
            ))));
        }
        let most = buffer.remaining().min(self.room);
        let mut some = ReadBuf::new(buffer.initialize_unfilled_to(most));
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut some))?;
        let read = some.filled().len();
        self.room -= read;
        buffer.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.asked = true;
        self.reader.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
