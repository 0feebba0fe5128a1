//! Streams between a connection and a handler.

use std::io;

use bytes::Bytes;
use serde::Deserialize;
use tokio::sync::{mpsc, watch};

use crate::packet::{PAYLOAD, Packet};

/// Stream of bytes from the client to a handler.
#[derive(Debug)]
pub struct Input(mpsc::Receiver<Bytes>);

impl Input {
    pub(crate) fn new(slots: usize) -> (mpsc::Sender<Bytes>, Self) {
        let (sender, receiver) = mpsc::channel(slots);
        (sender, Self(receiver))
    }

    /// Returns the next bytes, or `None` at the end of the stream. This method is cancel safe.
    pub async fn read(&mut self) -> Option<Bytes> {
        self.0.recv().await
    }
}

/// Stream of bytes from a handler to the client.
#[derive(Debug)]
pub struct Output {
    stream: u32,
    queue: mpsc::Sender<Packet>,
}

impl Output {
    pub(crate) fn new(stream: u32, queue: &mpsc::Sender<Packet>) -> Self {
        Self { stream, queue: queue.clone() }
    }

    /// Queues bytes for the client. Waits while the client does not read.
    ///
    /// # Errors
    ///
    /// Returns [`io::ErrorKind::BrokenPipe`] if the connection is closed.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        for chunk in bytes.chunks(PAYLOAD) {
            let packet = Packet::Data { stream: self.stream, bytes: Bytes::copy_from_slice(chunk) };
            self.queue.send(packet).await.map_err(|_| io::ErrorKind::BrokenPipe)?;
        }
        Ok(())
    }
}

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "PascalCase")]
pub struct Size {
    pub width: u16,
    pub height: u16,
}

/// Sizes of the client's terminal. A handler that is slower than the client receives only the newest size.
#[derive(Debug)]
pub struct Resizes(watch::Receiver<Option<Size>>);

impl Resizes {
    pub(crate) fn new() -> (watch::Sender<Option<Size>>, Self) {
        let (sender, receiver) = watch::channel(None);
        (sender, Self(receiver))
    }

    /// Returns the next size, or `None` if there will be no further size.
    pub async fn next(&mut self) -> Option<Size> {
        loop {
            self.0.changed().await.ok()?;
            if let Some(size) = *self.0.borrow_and_update() {
                return Some(size);
            }
        }
    }
}

/// Maximum length of an incomplete size, in bytes.
const UNFINISHED: usize = 1024;

/// Sends the sizes in `buffer`, and leaves an incomplete size in `buffer`. Returns false if the bytes are not JSON
/// sizes.
pub(crate) fn resize(buffer: &mut Vec<u8>, sizes: &watch::Sender<Option<Size>>) -> bool {
    let mut values = serde_json::Deserializer::from_slice(buffer).into_iter::<Size>();
    loop {
        match values.next() {
            Some(Ok(size)) => {
                sizes.send_replace(Some(size));
            }
            Some(Err(err)) if !err.is_eof() => return false,
            Some(Err(_)) | None => break,
        }
    }
    let rest = values.byte_offset();
    buffer.drain(..rest);
    buffer.len() <= UNFINISHED
}
