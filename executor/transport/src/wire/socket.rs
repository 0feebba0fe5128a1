//! The stream that h2 reads and writes. The stream converts between a socket and h2 with [`Inbound`] and [`Outbound`].

use std::io::{self, IoSlice};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::calls::Calls;
use super::frame::wipe;
use super::inbound::Inbound;
use super::outbound::Outbound;

/// Read size, in bytes.
const READ: usize = 16 << 10;
/// Number of unwritten bytes above which h2 has to wait.
const WAITING_MAX: usize = 64 << 10;
/// Maximum number of pieces per write.
const PIECES: usize = 64;

/// Stream of a connection for h2.
#[derive(Debug)]
pub struct Wire<S> {
    stream: S,
    inbound: Inbound,
    outbound: Outbound,
    /// Bytes read from the socket. Parsed bytes are overwritten, so only the range `unseen` has content.
    buffer: Vec<u8>,
    /// Unparsed part of the buffer.
    unseen: Range<usize>,
}

impl<S> Wire<S> {
    /// Creates the stream of a connection with these calls.
    pub fn new(stream: S, calls: &Calls) -> Self {
        let (inbound, outbound) = (Inbound::new(calls.clone()), Outbound::new(calls.clone()));
        Self { stream, inbound, outbound, buffer: vec![0; READ], unseen: 0..0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, inbound, buffer, unseen, .. } = self.get_mut();
        let mut given = false;
        loop {
            let ready = inbound.pending().min(room.remaining());
            if ready > 0 {
                let ready = inbound.give(room.initialize_unfilled_to(ready));
                room.advance(ready);
                given = true;
            }
            // Bytes of a client that violated the protocol are ignored.
            if room.remaining() == 0 || inbound.is_over() {
                return Poll::Ready(Ok(()));
            }
            if unseen.start < unseen.end {
                let taken = inbound.feed(&buffer[unseen.clone()])?;
                wipe(&mut buffer[unseen.start..unseen.start + taken]);
                unseen.start += taken;
                continue;
            }
            if given {
                return Poll::Ready(Ok(()));
            }
            let mut read = ReadBuf::new(buffer);
            ready!(Pin::new(&mut *stream).poll_read(context, &mut read))?;
            *unseen = 0..read.filled().len();
            if unseen.end == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> Wire<S> {
    /// Writes until at most `most` bytes are unwritten.
    fn poll_drain(&mut self, context: &mut Context<'_>, most: usize) -> Poll<io::Result<()>> {
        while self.outbound.unwritten_bytes() > most {
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let mut count = 0;
            for (slot, piece) in pieces.iter_mut().zip(self.outbound.pieces()) {
                *slot = IoSlice::new(piece);
                count += 1;
            }
            let written = Pin::new(&mut self.stream).poll_write_vectored(context, &pieces[..count]);
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.outbound.mark_written(written),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_pieces(&mut self, context: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        ready!(self.poll_drain(context, WAITING_MAX))?;
        let mut taken = 0;
        for piece in pieces {
            self.outbound.feed(piece);
            taken += piece.len();
        }
        Poll::Ready(Ok(taken))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_pieces(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_pieces(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_drain(context, 0))?;
        Pin::new(&mut this.stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_drain(context, 0))?;
        Pin::new(&mut this.stream).poll_shutdown(context)
    }
}
