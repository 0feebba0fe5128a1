//! HTTP/2 by hand: for what a library of its own accord would not send, or not leave unread.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// SETTINGS_INITIAL_WINDOW_SIZE.
const WINDOW: u16 = 4;
/// Largest frame that needs no agreement.
const FRAME_MAX: usize = 16_384;

/// Within this time a call is answered.
pub(crate) const ANSWER: Duration = Duration::from_secs(10);
/// After this time without a byte there is nothing more to come.
const PAUSE: Duration = Duration::from_millis(200);

/// A connection on which nothing is read but what [`Raw::settle`] reads.
pub(crate) struct Raw(UnixStream);

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header that no table remembers, without Huffman coding, as gRPC's C core sends them (RFC 7541, 6.2.2).
fn literal(name: &str, value: &str, block: &mut Vec<u8>) {
    block.push(0);
    for text in [name, value] {
        assert!(text.len() < 127, "{text} needs more than one byte of length");
        block.push(text.len() as u8);
        block.extend(text.as_bytes());
    }
}

impl Raw {
    /// Connects, with a window for the bodies of answers: 0 for none at all.
    pub(crate) fn connect(socket: &Path, window: u32) -> std::io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_write_timeout(Some(Duration::from_secs(10)))?;
        let mut setting = WINDOW.to_be_bytes().to_vec();
        setting.extend(window.to_be_bytes());
        stream.write_all(PREFACE)?;
        stream.write_all(&frame(SETTINGS, 0, 0, &setting))?;
        let mut raw = Self(stream);
        raw.settle(ANSWER);
        raw.0.write_all(&frame(SETTINGS, 1, 0, &[]))?;
        Ok(raw)
    }

    /// Reads what comes until nothing more does, and forgets it; for the first byte it waits longer. Tells how much it was.
    pub(crate) fn settle(&mut self, first: Duration) -> usize {
        let (mut buffer, mut all, mut patience) = ([0; 65_536], 0, first);
        loop {
            let _ = self.0.set_read_timeout(Some(patience));
            match self.0.read(&mut buffer) {
                Ok(n @ 1..) => all += n,
                _ => return all,
            }
            patience = PAUSE;
        }
    }

    /// Begins a unary call and sends all of it.
    pub(crate) fn call(&mut self, stream: u32, method: &str, message: &[u8]) -> std::io::Result<()> {
        let mut block = Vec::new();
        let headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ];
        headers.iter().for_each(|(name, value)| literal(name, value, &mut block));
        self.0.write_all(&frame(HEADERS, END_HEADERS, stream, &block))?;
        let mut body = vec![0];
        body.extend((message.len() as u32).to_be_bytes());
        body.extend(message);
        let mut chunks = body.chunks(FRAME_MAX).peekable();
        while let Some(chunk) = chunks.next() {
            let flags = if chunks.peek().is_none() { END_STREAM } else { 0 };
            self.0.write_all(&frame(DATA, flags, stream, chunk))?;
        }
        Ok(())
    }
}
