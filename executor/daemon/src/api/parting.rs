//! The end of a connection over which secrets were answered.
//!
//! The HTTP/2 library keeps more of such a call than of Run: the token stands in the table of header fields that the
//! client filled (HPACK), the answer's last frames in the buffer for writing. Neither can be overwritten from here, as
//! the read buffer is (see the module `scrub`), and both go with the connection. Its client is a container that asks
//! once, not a control plane with streams. So it is told to go (GOAWAY) as soon as it asks, keeps what it needs to take
//! the answer, and is left a moment after that, whether it listens or not.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Bytes, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;

/// For the last bytes of an answer to be taken from the socket.
const FLUSH: Duration = Duration::from_millis(500);
/// For a whole answer to be taken by a client that reads.
const ANSWER: Duration = Duration::from_secs(10);

/// How far a connection is on its way to its end.
#[derive(Clone, Copy, Debug, Default)]
struct Stage {
    /// Secrets were asked for.
    begun: bool,
    /// Answers that are under way.
    answers: usize,
    /// Bytes of answers that were handed to the library, which takes a large one as a whole.
    owed: u64,
    /// Bytes that the socket has taken since. Frames have headers, too: when it has taken as many as are owed, what is
    /// left to be written is next to nothing.
    written: u64,
}

impl Stage {
    fn is_answered(&self) -> bool {
        self.answers == 0 && self.written >= self.owed
    }
}

/// Shared by a connection and its calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Parting(watch::Sender<Stage>);

impl Parting {
    /// A call begins that ends the connection.
    pub(super) fn begin(&self) -> Answer {
        self.0.send_modify(|stage| *stage = Stage { begun: true, answers: stage.answers + 1, ..*stage });
        Answer(self.0.clone())
    }

    /// The connection's stream, looked at for what it takes.
    pub(super) fn watching<S>(&self, stream: S) -> Watched<S> {
        Watched { stream, parting: self.clone() }
    }

    fn written(&self, bytes: usize) {
        self.0.send_if_modified(|stage| {
            stage.written += if stage.begun { bytes as u64 } else { 0 };
            stage.begun
        });
    }

    /// Resolves when such a call has begun.
    pub(super) async fn begun(&self) {
        // The sender is `self`.
        let _ = self.0.subscribe().wait_for(|stage| stage.begun).await;
    }

    /// Resolves when the connection has had its time.
    pub(super) async fn over(&self) {
        let answered = async {
            let _ = self.0.subscribe().wait_for(Stage::is_answered).await;
            tokio::time::sleep(FLUSH).await;
        };
        let _ = tokio::time::timeout(ANSWER, answered).await;
    }
}

/// An answer under way; dropped with its last byte handed over, or when nobody wants it any more.
#[derive(Debug)]
pub(super) struct Answer(watch::Sender<Stage>);

impl Answer {
    /// Goes along with a body.
    pub(super) fn with(self, body: Body) -> Body {
        Body::new(Accompanied { body, answer: self })
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.0.send_modify(|stage| stage.answers = stage.answers.saturating_sub(1));
    }
}

/// A stream that tells how much it has taken.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    parting: Parting,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        Pin::new(&mut this.stream).poll_write(context, bytes).map_ok(|taken| {
            this.parting.written(taken);
            taken
        })
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        Pin::new(&mut this.stream).poll_write_vectored(context, bytes).map_ok(|taken| {
            this.parting.written(taken);
            taken
        })
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

/// A body with an [`Answer`].
struct Accompanied {
    body: Body,
    answer: Answer,
}

impl hyper::body::Body for Accompanied {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        Pin::new(&mut this.body).poll_frame(context).map_ok(|frame| {
            let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
            this.answer.0.send_modify(|stage| stage.owed += bytes);
            frame
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_a_moment_after_its_last_answer_and_never_much_later() {
        let parting = Parting::default();
        assert!(tokio::time::timeout(ANSWER, parting.begun()).await.is_err());
        let (one, two) = (parting.begin(), parting.begin());
        parting.begun().await;
        let start = Instant::now();
        parting.over().await;
        assert_eq!(start.elapsed(), ANSWER, "an answer that nobody takes");
        drop(one);
        let later = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(two.with(Body::empty()));
        };
        let start = Instant::now();
        tokio::join!(parting.over(), later);
        assert_eq!(start.elapsed(), Duration::from_secs(1) + FLUSH);
    }

    /// What the library has taken is not yet what the client has.
    #[tokio::test(start_paused = true)]
    async fn an_answer_is_out_when_the_socket_has_it() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let parting = Parting::default();
        let (mut client, server) = tokio::io::duplex(600);
        let mut server = parting.watching(server);
        server.write_all(&[0; 100]).await.unwrap(); // of before: does not count
        let mut body = parting.begin().with(Body::new(http_body_of(b"0123456789".repeat(100))));
        while std::future::poll_fn(|context| hyper::body::Body::poll_frame(Pin::new(&mut body), context))
            .await
            .is_some()
        {}
        drop(body);
        let start = Instant::now();
        let writing = async { server.write_all(&[1; 1000]).await.unwrap() };
        let reading = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            client.read_exact(&mut [0; 1100]).await.unwrap();
        };
        tokio::join!(parting.over(), writing, reading);
        assert_eq!(start.elapsed(), Duration::from_secs(3) + FLUSH);
    }

    fn http_body_of(bytes: Vec<u8>) -> impl hyper::body::Body<Data = Bytes, Error = Status> + Send {
        struct Once(Option<Bytes>);
        impl hyper::body::Body for Once {
            type Data = Bytes;
            type Error = Status;
            fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
                Poll::Ready(self.get_mut().0.take().map(|bytes| Ok(Frame::data(bytes))))
            }
        }
        Once(Some(bytes.into()))
    }
}
