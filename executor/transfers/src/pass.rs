//! Forwards bytes from a pipe to a request body while an archive reader consumes them.

use std::fs::File;
use std::io::{self, Read};

use hyper::body::Bytes;
use tokio::sync::mpsc;

/// Sender for the pieces of a body. A send blocks while the connection accepts no further pieces.
pub(crate) type Pieces = mpsc::Sender<io::Result<Bytes>>;

/// The pipe from a container, as the source of an archive. If there is a request body, the body gets every byte that is
/// read.
pub(crate) struct TeeReader {
    pipe: File,
    body: Option<Pieces>,
    /// Number of bytes that may still be read.
    left: u64,
}

impl TeeReader {
    pub(crate) fn new(pipe: File, body: Option<Pieces>, left: u64) -> Self {
        Self { pipe, body, left }
    }

    /// Reads the remaining bytes of the pipe.
    pub(crate) fn rest(&mut self) -> io::Result<()> {
        io::copy(self, &mut io::sink()).map(drop)
    }
}

impl Read for TeeReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.pipe.read(buffer)?;
        self.left = self
            .left
            .checked_sub(length as u64)
            .ok_or_else(|| io::Error::other("the files are larger than allowed (transfers.bytes_max)"))?;
        if let Some(body) = self.body.as_ref().filter(|_| length > 0) {
            let piece = Bytes::copy_from_slice(&buffer[..length]);
            body.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe)?;
        }
        Ok(length)
    }
}
