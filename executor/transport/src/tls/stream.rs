//! A caller's stream: reads and writes a socket through a [`Session`].

use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::session::Session;
use crate::client_socket::ClientSocket;

/// A caller's decrypted stream.
#[derive(Debug)]
pub struct TlsStream {
    socket: ClientSocket<TcpStream>,
    session: Session,
    /// Number of plain bytes that were encrypted but are not completely in the socket yet. Bytes are reported as
    /// written when they are in the socket.
    accepted: usize,
    closing: bool,
}

impl TlsStream {
    pub fn new(socket: ClientSocket<TcpStream>, session: Session) -> Self {
        Self { socket, session, accepted: 0, closing: false }
    }

    /// Writes encrypted bytes to the socket.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.session.unsent().is_empty() {
            match ready!(Pin::new(&mut self.socket).poll_write(context, self.session.unsent()))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.session.sent(written),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let read = this.session.read(room.initialize_unfilled());
            if read > 0 || room.remaining() == 0 {
                room.advance(read);
                return Poll::Ready(Ok(()));
            }
            if this.session.is_closed() {
                return Poll::Ready(Ok(()));
            }
            let mut received = ReadBuf::new(this.session.room()?);
            ready!(Pin::new(&mut this.socket).poll_read(context, &mut received))?;
            let bytes = received.filled().len();
            if bytes == 0 {
                return Poll::Ready(Ok(()));
            }
            let received = this.session.received(bytes);
            // There may be an alert, or the response to a key update. If the socket is full, a later write sends it.
            if let Poll::Ready(sent) = this.poll_send(context) {
                sent?;
            }
            received.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    /// Reports bytes as written only when all of them are in the socket, so that the writer's count of unwritten bytes
    /// is accurate. A writer that gets `Pending` calls again with the same bytes, and possibly more.
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if pieces.iter().all(|piece| piece.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        if this.accepted == 0 {
            ready!(this.poll_send(context))?;
            this.accepted = this.session.write(pieces)?;
        }
        ready!(this.poll_send(context))?;
        Poll::Ready(Ok(std::mem::take(&mut this.accepted)))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_send(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(context))?;
        if !this.closing {
            this.closing = true;
            let _ = this.session.close(); // fails if the session is closed
        }
        ready!(this.poll_send(context))?;
        Pin::new(&mut this.socket).poll_shutdown(context)
    }
}
