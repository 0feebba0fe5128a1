//! Parses h2's frames for the socket, and replaces the placeholders in the frames with the header blocks and bodies of
//! responses.

use std::collections::VecDeque;

use hyper::body::{Buf as _, Bytes};

use super::calls::Calls;
use super::frame::{self, HEADER, Head, PAYLOAD_MAX, code, flag, kind};

/// Parser of h2's frames.
#[derive(Debug)]
pub(super) struct Outbound {
    calls: Calls,
    parser: Parser,
    /// Pieces for the socket, each with a flag that is true if the piece belongs to a body.
    queued: VecDeque<(Bytes, bool)>,
    bytes: usize,
    /// Small pieces that are combined into one.
    small: Vec<u8>,
}

#[derive(Debug)]
enum Parser {
    Header([u8; HEADER], usize),
    /// Skipping h2's content; holds the number of remaining bytes.
    Skip(usize),
    /// Reading the payload of a control frame.
    Payload(Head, Vec<u8>),
}

impl Outbound {
    /// Creates the parser of a new connection.
    pub(super) fn new(calls: Calls) -> Self {
        Self { calls, parser: Parser::Header([0; HEADER], 0), queued: VecDeque::new(), bytes: 0, small: Vec::new() }
    }

    /// Returns the number of bytes that are not written to the socket.
    pub(super) fn unwritten_bytes(&self) -> usize {
        self.bytes + self.small.len()
    }

    /// Returns the next pieces to write to the socket.
    pub(super) fn pieces(&mut self) -> impl Iterator<Item = &[u8]> {
        self.flush_small();
        self.queued.iter().map(|(piece, _)| &**piece)
    }

    /// Records that this many bytes were written to the socket.
    pub(super) fn mark_written(&mut self, mut count: usize) {
        self.bytes -= count;
        let mut of_bodies = 0;
        while count > 0
            && let Some((piece, body)) = self.queued.front_mut()
        {
            let taken = count.min(piece.len());
            piece.advance(taken);
            count -= taken;
            of_bodies += if *body { taken } else { 0 };
            if piece.is_empty() {
                self.queued.pop_front();
            }
        }
        self.calls.written(of_bodies);
    }

    /// Parses bytes from h2.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = match &mut self.parser {
                Parser::Header(header, have) => {
                    let taken = bytes.len().min(HEADER - *have);
                    header[*have..*have + taken].copy_from_slice(&bytes[..taken]);
                    *have += taken;
                    if *have == HEADER {
                        let head = Head::parse(*header);
                        self.start(head);
                    }
                    taken
                }
                Parser::Skip(left) => {
                    let taken = bytes.len().min(*left);
                    *left -= taken;
                    if *left == 0 {
                        self.parser = Parser::Header([0; HEADER], 0);
                    }
                    taken
                }
                Parser::Payload(head, payload) => {
                    let taken = bytes.len().min(head.length - payload.len());
                    payload.extend_from_slice(&bytes[..taken]);
                    if payload.len() == head.length {
                        let (head, payload) = (*head, std::mem::take(payload));
                        self.forward_control_frame(head, payload);
                        self.parser = Parser::Header([0; HEADER], 0);
                    }
                    taken
                }
            };
            bytes = &bytes[taken..];
        }
    }

    fn start(&mut self, head: Head) {
        let skipped = |length| if length == 0 { Parser::Header([0; HEADER], 0) } else { Parser::Skip(length) };
        match head.kind {
            kind::DATA => {
                // h2 does not pad frames.
                head.put(&mut self.small);
                if head.length > 0 {
                    self.flush_small();
                    let (queued, bytes) = (&mut self.queued, &mut self.bytes);
                    self.calls.data(head.stream, head.length, |part| {
                        *bytes += part.len();
                        queued.push_back((part, true));
                    });
                }
                self.parser = skipped(head.length);
            }
            kind::HEADERS => {
                let block = self.calls.block(head.stream);
                self.put_block(&head, &block);
                self.parser = skipped(head.length);
            }
            // This frame continues h2's own header block, which was replaced.
            kind::CONTINUATION => return self.parser = skipped(head.length),
            _ if head.length > 0 => self.parser = Parser::Payload(head, Vec::with_capacity(head.length)),
            _ => {
                self.forward_control_frame(head, Vec::new());
                self.parser = Parser::Header([0; HEADER], 0);
            }
        }
        if matches!(head.kind, kind::DATA | kind::HEADERS) && head.has(flag::END_STREAM) {
            self.calls.end_library_side(head.stream);
        }
    }

    /// Writes a header block in as many frames as needed.
    fn put_block(&mut self, head: &Head, block: &[u8]) {
        let mut parts = block.chunks(PAYLOAD_MAX).peekable();
        let mut kind = kind::HEADERS;
        let mut flags = head.flags & flag::END_STREAM;
        loop {
            let part = parts.next().unwrap_or_default();
            let last = parts.peek().is_none();
            frame::put(&mut self.small, kind, flags | if last { flag::END_HEADERS } else { 0 }, head.stream, part);
            if last {
                return;
            }
            (kind, flags) = (kind::CONTINUATION, 0);
        }
    }

    fn forward_control_frame(&mut self, head: Head, mut payload: Vec<u8>) {
        match head.kind {
            kind::RST_STREAM => self.calls.reset(head.stream),
            kind::PING if head.has(flag::ACK) => payload = self.calls.pong().to_vec(),
            kind::PING => {
                if let Ok(said) = <[u8; 8]>::try_from(&*payload) {
                    self.calls.record_library_ping(said);
                }
            }
            kind::GOAWAY => {
                let last = payload.first_chunk().map_or(0, |last| u32::from_be_bytes(*last) & 0x7fff_ffff);
                let fault = self.calls.record_goaway(last);
                if let (Some(fault), Some(place)) = (fault, payload.get_mut(4..8)) {
                    let library = u32::from_be_bytes([place[0], place[1], place[2], place[3]]);
                    if library == code::PROTOCOL_ERROR {
                        place.copy_from_slice(&fault.to_be_bytes());
                    }
                }
            }
            _ => {}
        }
        frame::put(&mut self.small, head.kind, head.flags, head.stream, &payload);
    }

    fn flush_small(&mut self) {
        if !self.small.is_empty() {
            let piece = Bytes::from(std::mem::take(&mut self.small));
            self.bytes += piece.len();
            self.queued.push_back((piece, false));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::super::budget::PROGRESS;
    use super::super::calls::Request;
    use super::*;

    fn frame_of(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame::put(&mut bytes, kind, flags, stream, payload);
        bytes
    }

    /// h2's placeholders are replaced by header blocks and bodies, regardless of how writes are split.
    #[test]
    fn placeholders_are_replaced_by_contents() {
        let (head, trailers) = (vec![0x88; 20_000], b"\x10\x01x\x01y".to_vec());
        let said = [
            frame_of(kind::SETTINGS, 0, 0, &[0; 6]),
            frame_of(kind::HEADERS, flag::END_HEADERS, 1, b"its own block"),
            frame_of(kind::DATA, 0, 1, &[0; 4]),
            frame_of(kind::DATA, 0, 1, &[0; 3]),
            frame_of(kind::PING, flag::ACK, 0, &[0; 8]),
            frame_of(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, b""),
            frame_of(kind::GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 1]),
        ]
        .concat();
        let written = [
            frame_of(kind::SETTINGS, 0, 0, &[0; 6]),
            frame_of(kind::HEADERS, 0, 1, &[&[0x20][..], &head[..PAYLOAD_MAX - 1]].concat()),
            frame_of(kind::CONTINUATION, flag::END_HEADERS, 1, &head[PAYLOAD_MAX - 1..]),
            frame_of(kind::DATA, 0, 1, b"answ"),
            frame_of(kind::DATA, 0, 1, b"er!"),
            frame_of(kind::PING, flag::ACK, 0, b"12345678"),
            frame_of(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &trailers),
            frame_of(kind::GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 9]),
        ]
        .concat();
        for piece in [1, 5, 9, 1000] {
            let calls = Calls::new(8);
            calls.opened(1, Request::default(), true);
            calls.answer(1, head.clone(), None, false);
            for part in ["an", "swer", "!"] {
                assert!(calls.send(1, Bytes::from_static(part.as_bytes())));
            }
            calls.finish(1, trailers.clone());
            assert!(calls.record_client_ping(*b"12345678"));
            calls.failed(code::COMPRESSION_ERROR);
            let mut outbound = Outbound::new(calls.clone());
            let mut taken = Vec::new();
            for part in said.chunks(piece) {
                outbound.feed(part);
                let waiting: Vec<u8> = outbound.pieces().flat_map(<[u8]>::to_vec).collect();
                assert_eq!(waiting.len(), outbound.unwritten_bytes());
                let some = waiting.len().min(7);
                outbound.mark_written(some);
                taken.extend_from_slice(&waiting[..some]);
            }
            taken.extend(outbound.pieces().flat_map(<[u8]>::to_vec).collect::<Vec<u8>>());
            outbound.mark_written(outbound.unwritten_bytes());
            assert!(taken == written, "{piece}");
            assert!(calls.is_idle() && calls.unwritten().0 == 0, "a completed stream leaves no state");
            assert!(!calls.send(1, Bytes::from_static(b"late")));
        }
    }

    /// If a client reads only PING acknowledgements, or single bytes of its responses, it makes no progress.
    #[tokio::test(start_paused = true)]
    async fn progress_is_answers_at_a_minimum_rate() {
        let calls = Calls::new(8);
        let mut outbound = Outbound::new(calls.clone());
        calls.opened(1, Request::default(), true);
        let begun = Instant::now();
        calls.send(1, vec![7; 3 * PROGRESS].into());
        let mut read = |frame: Vec<u8>| {
            outbound.feed(&frame);
            assert_eq!(outbound.pieces().map(<[u8]>::len).sum::<usize>(), frame.len());
            outbound.mark_written(frame.len());
        };
        let data = |length| frame_of(kind::DATA, 0, 1, &vec![0; length]);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert!(calls.record_client_ping(*b"12345678"));
        read(frame_of(kind::PING, flag::ACK, 0, &[0; 8]));
        (0..9).for_each(|_| read(data(1)));
        assert_eq!(calls.unwritten(), (3 * PROGRESS - 9, begun));
        (0..PROGRESS / 10_000).for_each(|_| read(data(10_000)));
        assert_eq!(calls.unwritten().1, begun);
        read(data(10_000));
        assert_eq!(calls.unwritten().1, Instant::now());
        tokio::time::advance(Duration::from_secs(5)).await;
        while calls.unwritten().0 > 0 {
            read(data(calls.unwritten().0.min(10_000)));
        }
        assert_eq!(calls.unwritten().1, Instant::now(), "no bytes remain to be read");
    }

    /// If the client has closed a stream, the response on it becomes an error and zeros.
    #[test]
    fn reset_stream_gets_zeros_as_content() {
        let calls = Calls::new(8);
        calls.opened(1, Request::default(), false);
        calls.send(1, Bytes::from_static(b"secret"));
        calls.reset(1);
        let mut outbound = Outbound::new(calls.clone());
        outbound.feed(&frame_of(kind::HEADERS, flag::END_HEADERS, 1, b"own"));
        outbound.feed(&frame_of(kind::DATA, flag::END_STREAM, 1, &[0; 6]));
        let written: Vec<u8> = outbound.pieces().flat_map(<[u8]>::to_vec).collect();
        let block = frame_of(kind::HEADERS, flag::END_HEADERS, 1, b"\x20\x08\x03500");
        assert_eq!(written, [block, frame_of(kind::DATA, flag::END_STREAM, 1, &[0; 6])].concat());
        outbound.mark_written(written.len());
        assert_eq!(calls.unwritten().0, 0);
    }
}
