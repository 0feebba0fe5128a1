//! A connection whose HTTP/2 library keeps nothing of what was read.
//!
//! h2 reads into one buffer for each connection, hands out pieces of it, and leaves what it has handed out in place
//! until the room is needed: the last requests' secrets stay for as long as the connection lives. Ending the
//! connection (GOAWAY) would free it, and make the client's next call fail where that was under way already, as
//! tonic's clients do; a connection with a long stream on it would not end at all. So the buffer is overwritten
//! instead, in the one way that reaches it: frames of zeros are put between the client's own. Their type is none
//! that HTTP/2 knows; such frames are to be read and ignored (RFC 9113, 4.1 and 5.5), and they fill the buffer once
//! around.
//!
//! In goes a stream, out comes a stream; nothing changes in what is written. Frames are followed by their headers
//! only, to know where one ends.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::frames::{Frames, HEADER};
use crate::locked;

/// Largest payload that the library takes, unless told otherwise.
const PAYLOAD: usize = 16_384;
/// A type that no specification gives a meaning to.
const UNKNOWN: u8 = 0xfa;
/// So many frames are more than the buffer ever holds: it grows to 64 KiB.
const FRAMES: usize = 6;

/// Asks for a connection's buffer to be overwritten.
#[derive(Clone, Debug, Default)]
pub(super) struct Scrubber(Arc<Asked>);

#[derive(Debug, Default)]
struct Asked {
    asked: AtomicBool,
    reader: Mutex<Option<Waker>>,
}

impl Scrubber {
    /// Overwrites what was read until now, as soon as the frame that is being read has ended.
    pub(super) fn scrub(&self) {
        if executor_secrets::CONTROL {
            return;
        }
        self.0.asked.store(true, Ordering::Release);
        let reader = locked(&self.0.reader).take();
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn was_asked(&self, reader: &Waker) -> bool {
        let mut known = locked(&self.0.reader);
        if !known.as_ref().is_some_and(|known| known.will_wake(reader)) {
            *known = Some(reader.clone());
        }
        drop(known);
        self.0.asked.swap(false, Ordering::Acquire)
    }
}

/// A stream of HTTP/2 from a client.
#[derive(Debug)]
pub(super) struct Scrubbed<S> {
    stream: S,
    scrubber: Scrubber,
    frames: Frames,
    /// Reads stop where a frame ends.
    interrupt_at_end: bool,
    /// Bytes of zero frames that are still to be given.
    left: usize,
}

impl<S> Scrubbed<S> {
    pub(super) fn new(stream: S, scrubber: Scrubber) -> Self {
        Self { stream, scrubber, frames: Frames::of_a_client(), interrupt_at_end: false, left: 0 }
    }

    /// Gives zero frames, as much as there is room for.
    fn give_zeros(&mut self, buffer: &mut ReadBuf<'_>) {
        let room = buffer.initialize_unfilled();
        let given = room.len().min(self.left);
        let start = FRAMES * (HEADER + PAYLOAD) - self.left;
        room[..given].fill(0);
        let header = [0, (PAYLOAD >> 8) as u8, PAYLOAD as u8, UNKNOWN, 0, 0, 0, 0, 0];
        for (offset, byte) in room[..given].iter_mut().enumerate() {
            if let Some(of_header) = header.get((start + offset) % (HEADER + PAYLOAD)) {
                *byte = *of_header;
            }
        }
        buffer.advance(given);
        self.left -= given;
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Scrubbed<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.scrubber.was_asked(context.waker()) {
            this.interrupt_at_end = true;
        }
        // A round that was asked for in the middle of another begins when that has ended: a zero frame is whole, too.
        if this.left == 0 && this.interrupt_at_end && this.frames.between() {
            this.interrupt_at_end = false;
            this.left = FRAMES * (HEADER + PAYLOAD);
        }
        if this.left > 0 {
            this.give_zeros(buffer);
            return Poll::Ready(Ok(()));
        }
        let most = if this.interrupt_at_end { this.frames.left_of_part() } else { usize::MAX };
        let most = most.min(buffer.remaining());
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most));
        std::task::ready!(Pin::new(&mut this.stream).poll_read(context, &mut part))?;
        let read = part.filled().len();
        this.frames.follow(part.filled());
        buffer.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Scrubbed<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, bytes)
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::frames::PREFACE;
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// The frames of a stream without its zero frames, and how many of those there were and behind which byte.
    fn without_zeros(mut bytes: &[u8]) -> (Vec<u8>, Vec<usize>) {
        let (mut own, mut zeros) = (bytes[..PREFACE].to_vec(), Vec::new());
        bytes = &bytes[PREFACE..];
        while !bytes.is_empty() {
            let length = HEADER + u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
            let (frame, rest) = bytes.split_at(length);
            if frame[3] == UNKNOWN {
                assert!(length == HEADER + PAYLOAD && frame[HEADER..].iter().all(|byte| *byte == 0));
                zeros.push(own.len());
            } else {
                own.extend_from_slice(frame);
            }
            bytes = rest;
        }
        (own, zeros)
    }

    /// Whatever sizes are read and wherever the scrub falls: the client's frames come as they were, zeros only
    /// between frames and never within a header block.
    #[tokio::test]
    async fn zeros_come_between_frames_and_nowhere_else() {
        let client = [
            vec![b'p'; PREFACE],
            frame(4, 0, &[]),
            frame(1, 0, b"half a header block"),
            frame(9, 4, b"the rest"),
            frame(0, 1, &[7; 20]),
            frame(8, 0, &[0; 4]),
        ]
        .concat();
        let within_headers = PREFACE + HEADER..PREFACE + 3 * HEADER + 19 + 8;
        for at in 0..client.len() {
            for room in [if at % 16 == 0 { 1 } else { 11 }, 1000, 100_000] {
                let (mut writer, reader) = tokio::io::duplex(1 << 20);
                let scrubber = Scrubber::default();
                let mut stream = Scrubbed::new(reader, scrubber.clone());
                writer.write_all(&client[..at]).await.unwrap();
                let mut read = vec![0; at];
                stream.read_exact(&mut read).await.unwrap();
                scrubber.scrub();
                writer.write_all(&client[at..]).await.unwrap();
                drop(writer);
                let mut buffer = vec![0xaa; room];
                loop {
                    let count = stream.read(&mut buffer).await.unwrap();
                    if count == 0 {
                        break;
                    }
                    read.extend_from_slice(&buffer[..count]);
                    buffer.fill(0xaa);
                }
                let (own, zeros) = without_zeros(&read);
                assert_eq!(own, client, "at {at}, room {room}");
                assert_eq!(zeros.len(), FRAMES);
                assert!(
                    zeros
                        .iter()
                        .all(|zero| *zero >= at && (*zero == within_headers.start || !within_headers.contains(zero)))
                );
            }
        }
    }

    /// A reader that waits for the client is woken.
    #[tokio::test]
    async fn a_waiting_reader_gets_the_zeros() {
        let (mut writer, reader) = tokio::io::duplex(1024);
        let scrubber = Scrubber::default();
        let mut stream = Scrubbed::new(reader, scrubber.clone());
        writer.write_all(&[b'p'; PREFACE]).await.unwrap();
        let reading = tokio::spawn(async move {
            let mut bytes = vec![0; PREFACE + FRAMES * (HEADER + PAYLOAD)];
            stream.read_exact(&mut bytes).await.unwrap();
            bytes
        });
        tokio::task::yield_now().await;
        scrubber.scrub();
        assert_eq!(without_zeros(&reading.await.unwrap()).1.len(), FRAMES);
    }

    /// A scrub that is asked for while zeros are being given waits for their end: no zero frame is torn.
    #[tokio::test]
    async fn a_second_scrub_waits_for_the_first() {
        let client = [vec![b'p'; PREFACE], frame(4, 0, &[]), frame(0, 1, &[7; 20])].concat();
        for after in [1, HEADER - 1, HEADER, 1000, PAYLOAD + 3, FRAMES * (HEADER + PAYLOAD) - 1] {
            let (mut writer, reader) = tokio::io::duplex(1 << 20);
            let scrubber = Scrubber::default();
            let mut stream = Scrubbed::new(reader, scrubber.clone());
            writer.write_all(&client).await.unwrap();
            drop(writer);
            scrubber.scrub();
            let mut read = vec![0; PREFACE + after];
            stream.read_exact(&mut read).await.unwrap();
            scrubber.scrub();
            stream.read_to_end(&mut read).await.unwrap();
            let (own, zeros) = without_zeros(&read);
            assert_eq!(own, client, "after {after}");
            assert_eq!(zeros.len(), 2 * FRAMES, "after {after}: {zeros:?}");
        }
    }
}
