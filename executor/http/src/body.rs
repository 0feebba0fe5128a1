//! Bodies of requests: bytes, or a stream of pieces.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::mpsc;

#[derive(Debug)]
pub enum RequestBody {
    /// The complete body of a request.
    Full(Bytes),
    /// Body that is sent piece by piece.
    Stream(Pieces),
}

/// Stream of a body's pieces, with its size if known.
#[derive(Debug)]
pub struct Pieces {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    size: Option<u64>,
    taken: BytesSent,
}

/// Counts the bytes of a body that the connection has accepted.
#[derive(Clone, Debug, Default)]
pub struct BytesSent(Arc<AtomicU64>);

impl BytesSent {
    /// Returns the number of bytes that the connection has accepted.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl RequestBody {
    pub fn empty() -> Self {
        Self::Full(Bytes::new())
    }

    /// Creates a body from a stream of pieces. An error in the stream aborts the request. The returned counter holds
    /// the number of bytes that the connection has accepted.
    pub fn stream(pieces: mpsc::Receiver<io::Result<Bytes>>, size: Option<u64>) -> (Self, BytesSent) {
        let taken = BytesSent::default();
        (Self::Stream(Pieces { pieces, size, taken: taken.clone() }), taken)
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Full(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Stream(Pieces { pieces, taken, .. }) => pieces.poll_recv(context).map(|piece| {
                let bytes = match piece? {
                    Ok(bytes) => bytes,
                    Err(error) => return Some(Err(error)),
                };
                taken.0.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                Some(Ok(Frame::data(bytes)))
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Full(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Stream(Pieces { size, taken, .. }) => match size {
                Some(size) => SizeHint::with_exact(size.saturating_sub(taken.bytes())),
                None => SizeHint::default(),
            },
        }
    }
}
