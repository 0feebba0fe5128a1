//! The end of a connection over which secrets were answered.
//!
//! The HTTP/2 library keeps more of such a call than of Run: the token stands in the table of header fields that the
//! client filled (HPACK), the answer's last frames in the buffer for writing. Neither can be overwritten from here, as
//! the read buffer is (see the module `scrub`), and both go with the connection. Its client is a container that asks
//! once, not a control plane with streams. So it is told to go (GOAWAY) as soon as it asks, and a moment after the
//! socket has the whole answer what the library holds is freed, whether the client listens or not. The socket itself
//! stays a while longer for a client that was held up (see [`Remainder`]).

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use executor_sys::unread::unread;
use hyper::body::{Bytes, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;

use super::frames::Frames;

/// Between the last byte that is written and the end of what the library holds: for a client that says goodbye itself.
const FLUSH: Duration = Duration::from_millis(200);
/// For a whole answer to be taken by a client that reads.
const ANSWER: Duration = Duration::from_secs(10);
/// Between looks whether a client has read what was written: the kernel does not tell when it has.
const LOOK: Duration = Duration::from_millis(20);

/// Until when a connection that parts now may be there for a client that takes its time.
pub(super) fn deadline() -> Instant {
    Instant::now() + ANSWER
}

/// How far a connection is on its way to its end.
#[derive(Clone, Copy, Debug, Default)]
struct Stage {
    /// Secrets were asked for.
    begun: bool,
    /// Answers with secrets that are under way.
    answers: usize,
    /// Bytes of bodies that were handed to the library, which takes a large one as a whole.
    handed: u64,
    /// Bytes of bodies that the socket has taken.
    written: u64,
    /// The library has more, for which the socket has no room.
    blocked: bool,
}

impl Stage {
    fn is_answered(&self) -> bool {
        self.answers == 0 && self.written >= self.handed && !self.blocked
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
        Watched { stream, frames: Frames::of_a_server(), parting: self.clone() }
    }

    /// The body of an answer, looked at for what it hands over; with what makes it one with secrets.
    pub(super) fn accompany(&self, body: Body, answer: Option<Answer>) -> Body {
        Body::new(Accompanied { body, parting: self.clone(), _answer: answer })
    }

    /// Changes the stage, of which somebody needs to know only where secrets were asked for.
    fn now(&self, change: impl FnOnce(&mut Stage)) {
        self.0.send_if_modified(|stage| {
            change(stage);
            stage.begun
        });
    }

    /// Resolves when such a call has begun.
    pub(super) async fn begun(&self) {
        // The sender is `self`.
        let _ = self.0.subscribe().wait_for(|stage| stage.begun).await;
    }

    /// Such a call has begun.
    pub(super) fn has_begun(&self) -> bool {
        self.0.borrow().begun
    }

    /// Resolves when the library has nothing left to write for a moment, and at the deadline at the latest.
    pub(super) async fn over(&self, deadline: Instant) {
        let answered = async {
            let mut stage = self.0.subscribe();
            loop {
                let _ = stage.wait_for(Stage::is_answered).await;
                tokio::time::sleep(FLUSH).await;
                if stage.borrow().is_answered() {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout_at(deadline, answered).await;
    }
}

/// An answer under way; dropped with its last byte handed over, or when nobody wants it any more.
#[derive(Debug)]
pub(super) struct Answer(watch::Sender<Stage>);

impl Drop for Answer {
    fn drop(&mut self) {
        self.0.send_modify(|stage| stage.answers = stage.answers.saturating_sub(1));
    }
}

/// Keeps a socket open when what the library held of its connection is gone. A client that says something to a closed
/// one, if only that it is still there, is told so before it has read what lies there for it, and loses that.
#[derive(Debug)]
pub(super) struct Remainder(OwnedFd);

impl Remainder {
    /// # Errors
    /// No descriptor is left.
    pub(super) fn of(stream: &UnixStream) -> io::Result<Self> {
        Ok(Self(stream.as_fd().try_clone_to_owned()?))
    }

    /// Tells the client that nothing more will come. Resolves when it has read everything or is gone, and at the deadline
    /// at the latest.
    pub(super) async fn taken(self, deadline: Instant) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Write); // it fails where the client is gone
        while Instant::now() < deadline && unread(&self.0).is_ok_and(|bytes| bytes > 0) {
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// A stream that tells how much it has taken.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    frames: Frames,
    parting: Parting,
}

impl<S> Watched<S> {
    /// Counts what a write has taken of the given pieces.
    fn counted<'a>(
        &mut self,
        written: Poll<io::Result<usize>>,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(mut left)) = written {
            for piece in pieces {
                let taken = left.min(piece.len());
                self.frames.follow(&piece[..taken]);
                left -= taken;
            }
        }
        let (data, blocked) = (self.frames.data(), written.is_pending());
        self.parting.now(|stage| (stage.written, stage.blocked) = (data, blocked));
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.counted(written, [bytes])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, bytes);
        this.counted(written, bytes.iter().map(|piece| &**piece))
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

/// A body whose bytes are counted as they are handed over.
struct Accompanied {
    body: Body,
    parting: Parting,
    _answer: Option<Answer>,
}

impl hyper::body::Body for Accompanied {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        Pin::new(&mut this.body).poll_frame(context).map_ok(|frame| {
            let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
            this.parting.now(|stage| stage.handed += bytes);
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
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// A frame with a part of a body.
    fn data(bytes: usize) -> Vec<u8> {
        let length = (bytes as u32).to_be_bytes();
        [&length[1..], &[0; 6], &vec![1; bytes]].concat()
    }

    async fn hand_over(mut body: Body) {
        let mut body = Pin::new(&mut body);
        while std::future::poll_fn(|context| hyper::body::Body::poll_frame(body.as_mut(), context)).await.is_some() {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_a_moment_after_its_last_answer_and_never_much_later() {
        let parting = Parting::default();
        assert!(tokio::time::timeout(ANSWER, parting.begun()).await.is_err() && !parting.has_begun());
        let start = Instant::now();
        parting.over(deadline()).await;
        assert_eq!(start.elapsed(), FLUSH, "one that is too old, and has a moment for a call that is on its way");
        let (one, two) = (parting.begin(), parting.begin());
        parting.begun().await;
        let start = Instant::now();
        parting.over(deadline()).await;
        assert_eq!(start.elapsed(), ANSWER, "an answer that nobody takes");
        drop(one);
        let later = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(parting.accompany(Body::empty(), Some(two)));
        };
        let start = Instant::now();
        tokio::join!(parting.over(deadline()), later);
        assert_eq!(start.elapsed(), Duration::from_secs(1) + FLUSH);
    }

    /// What the library has taken is not yet what the client has: neither the last byte of a body, nor what follows it.
    #[tokio::test(start_paused = true)]
    async fn an_answer_is_out_when_the_socket_has_it() {
        for (room, after) in [(600, 0), (1000, 0), (1009 + 9 + 99, 0), (1009 + 9 + 100, 50), (1500, 600)] {
            let parting = Parting::default();
            let (mut client, server) = tokio::io::duplex(room);
            let mut server = parting.watching(server);
            server.write_all(&data(100)).await.unwrap(); // of another stream
            let other = Body::new(http_body_of(vec![0; 100]));
            hand_over(parting.accompany(other, None)).await;
            let body = Body::new(http_body_of(vec![1; 1000]));
            hand_over(parting.accompany(body, Some(parting.begin()))).await;
            let start = Instant::now();
            let writing = async {
                server.write_all(&data(1000)).await.unwrap();
                server
                    .write_all(&[&[0, (after >> 8) as u8, after as u8, 1, 5, 0, 0, 0, 1][..], &vec![0; after]].concat())
                    .await
                    .unwrap();
            };
            let reading = async {
                tokio::time::sleep(Duration::from_secs(3)).await;
                client.read_exact(&mut vec![0; 109 + 1009 + 9 + after]).await.unwrap();
            };
            tokio::join!(parting.over(deadline()), writing, reading);
            assert_eq!(start.elapsed(), Duration::from_secs(3) + FLUSH, "{room}, {after}");
        }
    }

    #[tokio::test]
    async fn a_socket_stays_until_its_client_has_read() {
        let (mut client, mut server) = UnixStream::pair().unwrap();
        server.write_all(&[1; 100]).await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut taken = tokio::spawn(Remainder::of(&server).unwrap().taken(deadline));
        drop(server);
        client.read_exact(&mut [0; 99]).await.unwrap();
        assert!(tokio::time::timeout(3 * LOOK, &mut taken).await.is_err());
        client.write_all(b"still here").await.unwrap();
        assert_eq!(client.read_to_end(&mut Vec::new()).await.unwrap(), 1);
        taken.await.unwrap();
        assert!(client.write_all(b"closed").await.is_err());
        let (client, mut server) = UnixStream::pair().unwrap();
        server.write_all(&[1; 100]).await.unwrap();
        Remainder::of(&server).unwrap().taken(Instant::now() + LOOK).await; // one that never reads
        drop(client);
        Remainder::of(&server).unwrap().taken(deadline).await; // one that is gone
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
