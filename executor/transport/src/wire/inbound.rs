//! Parses a client's frames. Passes their content to the calls, and frames of the same shape to h2.
//!
//! h2 gets a frame for each meaningful frame: a header block with the stream's id, zeros for a body, numbers for
//! numeric payloads. All other data from the client is dropped (fields, padding, unknown frames and settings, debug
//! data, contents of PINGs). If a frame violates the protocol, h2 gets a frame that violates the protocol in the same
//! way, so that h2 handles the violation.

use std::io;

use tonic::codegen::http::{HeaderName, HeaderValue, Method};

use super::calls::{Calls, Request};
use super::frame::{self, HEADER, Head, PAYLOAD_MAX, PREFACE, code, flag, kind};
use super::hpack::{self, Decoder, ENTRY_OVERHEAD};

/// Maximum size of a request's header list in bytes; many times the size of a gRPC call's tokens and trace contexts.
pub const FIELDS_MAX: usize = 16 << 10;
/// Maximum size of a header block that is decoded, in bytes. Header lists above `FIELDS_MAX` are decoded, then refused.
const BLOCK_MAX: usize = 256 << 10;
/// Maximum number of frames of a header block.
const BLOCK_FRAMES_MAX: usize = 64;

/// Parser of a client's frames.
#[derive(Debug)]
pub(super) struct Inbound {
    calls: Calls,
    hpack: Decoder,
    parser: Parser,
    block: Option<Block>,
    /// Bytes that h2 receives instead of the client's bytes.
    reported: Vec<u8>,
    /// Number of bytes of `reported` that h2 has received.
    given: usize,
    /// Number of zeros that h2 gets after `reported`.
    zeros: usize,
    /// True after the client violated the protocol; further bytes are ignored.
    over: bool,
}

#[derive(Debug)]
enum Parser {
    /// Reading the preface; holds the number of received bytes.
    Preface(usize),
    Header([u8; HEADER], usize),
    Payload(Head, Vec<u8>),
}

/// A header block that continues in another frame.
#[derive(Debug)]
struct Block {
    stream: u32,
    end_stream: bool,
    frames: usize,
    bytes: Vec<u8>,
}

impl Inbound {
    /// Creates the parser of a new connection.
    pub(super) fn new(calls: Calls) -> Self {
        Self {
            calls,
            hpack: Decoder::default(),
            parser: Parser::Preface(0),
            block: None,
            reported: Vec::new(),
            given: 0,
            zeros: 0,
            over: false,
        }
    }

    /// Returns true if h2 will get no more bytes.
    pub(super) fn is_over(&self) -> bool {
        self.over && self.pending() == 0
    }

    /// Returns the number of bytes that wait for h2.
    pub(super) fn pending(&self) -> usize {
        self.reported.len() - self.given + self.zeros
    }

    /// Passes pending bytes to h2, and returns the number of bytes passed.
    pub(super) fn give(&mut self, room: &mut [u8]) -> usize {
        let reported = room.len().min(self.reported.len() - self.given);
        room[..reported].copy_from_slice(&self.reported[self.given..self.given + reported]);
        self.given += reported;
        if self.given == self.reported.len() {
            self.reported.clear();
            self.given = 0;
        }
        let zeros = (room.len() - reported).min(self.zeros);
        room[reported..reported + zeros].fill(0);
        self.zeros -= zeros;
        reported + zeros
    }

    /// Parses bytes up to the end of a frame, and returns the number of bytes consumed. Call this only when h2 has
    /// received all earlier bytes.
    ///
    /// # Errors
    /// Returns an error if the client does not use HTTP/2.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.over {
            return Ok(bytes.len());
        }
        match &mut self.parser {
            Parser::Preface(have) => {
                let taken = bytes.len().min(PREFACE.len() - *have);
                if bytes[..taken] != PREFACE[*have..*have + taken] {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "the client does not use HTTP/2"));
                }
                *have += taken;
                if *have == PREFACE.len() {
                    self.reported.extend_from_slice(PREFACE);
                    self.parser = Parser::Header([0; HEADER], 0);
                }
                Ok(taken)
            }
            Parser::Header(header, have) => {
                let taken = bytes.len().min(HEADER - *have);
                header[*have..*have + taken].copy_from_slice(&bytes[..taken]);
                *have += taken;
                if *have == HEADER {
                    let head = Head::parse(*header);
                    if head.length > PAYLOAD_MAX {
                        self.fail(code::FRAME_SIZE_ERROR);
                    } else if head.length == 0 {
                        self.frame(head, Vec::new());
                    } else {
                        self.parser = Parser::Payload(head, Vec::with_capacity(head.length));
                    }
                }
                Ok(taken)
            }
            Parser::Payload(head, payload) => {
                let taken = bytes.len().min(head.length - payload.len());
                payload.extend_from_slice(&bytes[..taken]);
                if payload.len() == head.length {
                    let (head, payload) = (*head, std::mem::take(payload));
                    self.frame(head, payload);
                }
                Ok(taken)
            }
        }
    }

    /// Closes the connection with this error code. h2 gets a CONTINUATION frame without HEADERS, which h2 rejects.
    fn fail(&mut self, code: u32) {
        self.calls.failed(code);
        frame::put(&mut self.reported, kind::CONTINUATION, flag::END_HEADERS, 1, &[]);
        self.over = true;
        (self.parser, self.block) = (Parser::Preface(0), None);
    }

    fn frame(&mut self, head: Head, payload: Vec<u8>) {
        self.parser = Parser::Header([0; HEADER], 0);
        let continued = self.block.as_ref().map(|block| block.stream);
        match (continued, head.kind) {
            (Some(stream), kind::CONTINUATION) if stream == head.stream => {}
            (None, kind::CONTINUATION) | (Some(_), _) => return self.fail(code::PROTOCOL_ERROR),
            (None, _) => {}
        }
        match head.kind {
            kind::DATA => self.data(head, payload),
            kind::HEADERS => match fragment(&head, &payload) {
                Some(bytes) => {
                    let end_stream = head.has(flag::END_STREAM);
                    self.add_block(head, Block { stream: head.stream, end_stream, frames: 0, bytes: bytes.to_vec() });
                }
                None => self.fail(code::PROTOCOL_ERROR),
            },
            kind::CONTINUATION => {
                if let Some(mut block) = self.block.take() {
                    block.bytes.extend_from_slice(&payload);
                    self.add_block(head, block);
                }
            }
            kind::RST_STREAM => {
                self.calls.reset(head.stream);
                self.push_shadow(head, known_code(&payload, 0));
            }
            kind::SETTINGS => self.settings(head, &payload),
            kind::PING => self.ping(head, &payload),
            // The debug data is not forwarded.
            kind::GOAWAY => self.push_shadow(head, known_code(payload.get(..8).unwrap_or_default(), 4)),
            kind::WINDOW_UPDATE => self.push_shadow(head, payload),
            kind::PUSH_PROMISE => self.fail(code::PROTOCOL_ERROR),
            // These frames are ignored (RFC 9113, 5.3.2 and 5.5).
            kind::PRIORITY => {}
            _ => {}
        }
    }

    /// Forwards a frame with a numeric payload to h2, which checks its size.
    fn push_shadow(&mut self, head: Head, mut payload: Vec<u8>) {
        payload.truncate(8);
        frame::put(&mut self.reported, head.kind, 0, head.stream, &payload);
    }

    fn data(&mut self, head: Head, mut payload: Vec<u8>) {
        let flags = head.flags & (flag::END_STREAM | flag::PADDED);
        Head { flags, ..head }.put(&mut self.reported);
        self.zeros = payload.len();
        let mut whole = true;
        if head.has(flag::PADDED)
            && let Some(padding) = payload.first().copied()
        {
            // h2 needs the padding length for flow control.
            self.reported.push(padding);
            self.zeros -= 1;
            whole = usize::from(padding) < payload.len();
            payload.truncate(payload.len().saturating_sub(usize::from(padding)).max(1));
            payload.remove(0);
        }
        if whole {
            self.calls.received(head.stream, payload, head.has(flag::END_STREAM));
        }
    }

    fn settings(&mut self, head: Head, payload: &[u8]) {
        /// Identifiers of the settings that h2 handles: ENABLE_PUSH, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE.
        const REPORTED: [u16; 3] = [2, 4, 5];
        if head.has(flag::ACK) {
            self.calls.settle();
            self.hpack.drop_table();
        }
        let (entries, rest) = payload.as_chunks::<6>();
        let mut last = [None; REPORTED.len()];
        for entry in entries {
            let id = u16::from_be_bytes([entry[0], entry[1]]);
            if let Some(place) = REPORTED.iter().position(|reported| *reported == id) {
                last[place] = Some(entry);
            }
        }
        let mut reported: Vec<u8> = last.iter().flatten().flat_map(|entry| entry.iter().copied()).collect();
        // A payload of invalid size keeps an invalid size.
        reported.extend(rest.iter().map(|_| 0));
        if head.has(flag::ACK) && !payload.is_empty() {
            reported.resize(payload.len().min(6), 0);
        }
        frame::put(&mut self.reported, kind::SETTINGS, head.flags & flag::ACK, head.stream, &reported);
    }

    fn ping(&mut self, head: Head, payload: &[u8]) {
        let mut reported = vec![0; payload.len().min(9)];
        if let Ok(said) = <[u8; 8]>::try_from(payload)
            && head.stream == 0
        {
            if head.has(flag::ACK) {
                if !self.calls.answers_ping(&said) {
                    return;
                }
                reported.copy_from_slice(&said); // h2's own payload
            } else if !self.calls.record_client_ping(said) {
                return self.fail(code::ENHANCE_YOUR_CALM);
            }
        }
        frame::put(&mut self.reported, kind::PING, head.flags & flag::ACK, head.stream, &reported);
    }

    /// Adds a part of a header block, and processes the block if it is complete.
    fn add_block(&mut self, head: Head, mut block: Block) {
        block.frames += 1;
        if block.bytes.len() > BLOCK_MAX || block.frames > BLOCK_FRAMES_MAX {
            return self.fail(code::ENHANCE_YOUR_CALM);
        }
        if !head.has(flag::END_HEADERS) {
            self.block = Some(block);
            return;
        }
        let mut fields = Fields::default();
        if self.hpack.decode(&block.bytes, |name, value| fields.add(name, value)).is_err() {
            return self.fail(code::COMPRESSION_ERROR);
        }
        let mut reported = Vec::new();
        if self.calls.is_new(block.stream) {
            // If the request is malformed, h2 gets an empty block, which closes the stream (RFC 9113, 8.1.1).
            if let Some(request) = fields.request() {
                hpack::put_request(&mut reported, &format!("/{}", block.stream));
                self.calls.opened(block.stream, request, block.end_stream);
            }
        } else if block.end_stream {
            // gRPC defines no request trailers, so they are dropped.
            self.calls.end_client_side(block.stream);
        }
        let flags = flag::END_HEADERS | if block.end_stream { flag::END_STREAM } else { 0 };
        frame::put(&mut self.reported, kind::HEADERS, flags, block.stream, &reported);
    }
}

/// Returns the header block fragment in the payload of a HEADERS frame, without padding and priority.
fn fragment<'a>(head: &Head, mut payload: &'a [u8]) -> Option<&'a [u8]> {
    let mut padding = 0;
    if head.has(flag::PADDED) {
        (padding, payload) = payload.split_first().map(|(padding, rest)| (usize::from(*padding), rest))?;
    }
    if head.has(flag::PRIORITY) {
        payload = payload.get(5..)?;
    }
    payload.get(..payload.len().checked_sub(padding)?)
}

/// Returns the payload. If the payload has an undefined error code at offset `at`, replaces the code with
/// INTERNAL_ERROR.
fn known_code(payload: &[u8], at: usize) -> Vec<u8> {
    let mut reported = payload.to_vec();
    if let Some(place) = reported.get_mut(at..at + 4)
        && let Ok(number) = <[u8; 4]>::try_from(&*place)
        && u32::from_be_bytes(number) > code::LAST
    {
        place.copy_from_slice(&code::INTERNAL_ERROR.to_be_bytes());
    }
    reported
}

/// Request fields (RFC 9113, 8.2 and 8.3).
#[derive(Default)]
struct Fields {
    request: Request,
    method: bool,
    scheme: bool,
    path: bool,
    authority: bool,
    /// True after a regular field. Pseudo-header fields must come before regular fields.
    regular: bool,
    malformed: bool,
}

impl Fields {
    fn add(&mut self, name: &[u8], value: &[u8]) {
        self.request.size = self.request.size.saturating_add(name.len() + value.len() + ENTRY_OVERHEAD);
        if name.first() == Some(&b':') {
            return self.add_pseudo(name, value);
        }
        self.regular = true;
        // Connection-specific fields are forbidden (RFC 9113, 8.2.2).
        let of_connection: [&[u8]; 5] =
            [b"connection", b"transfer-encoding", b"upgrade", b"keep-alive", b"proxy-connection"];
        if of_connection.contains(&name)
            || name.iter().any(u8::is_ascii_uppercase)
            || (name == b"te" && value != b"trailers")
        {
            self.malformed = true;
        }
        if self.request.size > FIELDS_MAX {
            self.request.fields.clear();
            return;
        }
        match (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            (Ok(name), Ok(mut value)) => {
                value.set_sensitive(true); // keeps the value out of Debug output
                self.malformed |= self.request.fields.try_append(name, value).is_err();
            }
            _ => self.malformed = true,
        }
    }

    fn add_pseudo(&mut self, name: &[u8], value: &[u8]) {
        let seen = match name {
            b":method" => {
                self.request.method = Method::from_bytes(value).unwrap_or_else(|_| {
                    self.malformed = true;
                    Method::GET
                });
                &mut self.method
            }
            b":path" => {
                // A malformed path matches no method.
                self.request.path = str::from_utf8(value).unwrap_or_default().to_owned();
                &mut self.path
            }
            b":scheme" => &mut self.scheme,
            // The value is ignored: clients based on gRPC's C core send a socket's path, which is not a valid authority
            // (RFC 3986, 3.2).
            b":authority" => &mut self.authority,
            _ => return self.malformed = true,
        };
        if std::mem::replace(seen, true) || self.regular {
            self.malformed = true;
        }
    }

    fn request(self) -> Option<Request> {
        (self.method && self.scheme && self.path && !self.malformed).then_some(self.request)
    }
}

#[cfg(test)]
mod tests {
    use super::super::shadow;
    use super::*;

    const CANARY: &[u8] = b"a canary that is long enough to be found again";

    fn frame_of(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame::put(&mut bytes, kind, flags, stream, payload);
        bytes
    }

    /// Returns the header block of a request with one additional field.
    fn block(name: &str, value: &[u8]) -> Vec<u8> {
        let mut block = Vec::new();
        hpack::put_request(&mut block, "/executor.v1.Executor/Run");
        hpack::put_field(&mut block, name, value);
        block
    }

    /// Returns the bytes that h2 gets for a client's frames, without the preface.
    fn reported(frames: &[Vec<u8>]) -> Vec<u8> {
        let said = [PREFACE.to_vec(), frames.concat()].concat();
        let reported = shadow(&said, 7);
        assert_eq!(reported, shadow(&said, 1 << 20));
        assert!(!reported.windows(16).any(|window| CANARY.windows(16).any(|canary| canary == window)));
        reported[PREFACE.len()..].to_vec()
    }

    #[test]
    fn library_receives_placeholders_of_content() {
        let mut request = Vec::new();
        hpack::put_request(&mut request, "/1");
        let opened = frame_of(kind::HEADERS, flag::END_HEADERS, 1, &request);
        let zeros = frame_of(kind::DATA, flag::END_STREAM, 1, &[0; CANARY.len()]);
        let head = block("authorization", CANARY);
        let data = frame_of(kind::DATA, flag::END_STREAM, 1, CANARY);
        let whole = frame_of(kind::HEADERS, flag::END_HEADERS, 1, &head);
        assert_eq!(reported(&[whole, data]), [&opened[..], &zeros].concat());
        // The request comes in several frames, with padding and priority.
        let first = [&[9][..], &[0; 5], &head[..20], CANARY[..9].as_ref()].concat();
        let pieces = [
            frame_of(kind::HEADERS, flag::PADDED | flag::PRIORITY, 1, &first),
            frame_of(kind::CONTINUATION, 0, 1, &head[20..30]),
            frame_of(kind::CONTINUATION, flag::END_HEADERS, 1, &head[30..]),
        ];
        assert_eq!(reported(&pieces), opened);
        let padded = frame_of(kind::DATA, flag::PADDED, 1, &[&[40][..], b"xy", &CANARY[..40]].concat());
        let without = frame_of(kind::DATA, flag::PADDED, 1, &[&[40][..], &[0; 42]].concat());
        assert_eq!(reported(&[padded]), without);
        // Meaningless frames are dropped; numeric payloads are forwarded.
        assert_eq!(reported(&[frame_of(0xfa, 0xff, 9, CANARY), frame_of(kind::PRIORITY, 0, 3, &CANARY[..5])]), b"");
        let settings = [&[0xf0][..], &CANARY[..5], &[0, 4, 0, 1, 0, 0], &[0, 4, 0, 2, 0, 0]].concat();
        let known = frame_of(kind::SETTINGS, 0, 0, &[0, 4, 0, 2, 0, 0]);
        assert_eq!(reported(&[frame_of(kind::SETTINGS, 0, 0, &settings)]), known);
        let goaway = frame_of(kind::GOAWAY, 0, 0, &[&[0, 0, 0, 0, 0, 0, 0, 1], CANARY].concat());
        assert_eq!(reported(&[goaway]), frame_of(kind::GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 1]));
        assert_eq!(reported(&[frame_of(kind::PING, 0, 0, &CANARY[..8])]), frame_of(kind::PING, 0, 0, &[0; 8]));
        assert_eq!(
            reported(&[frame_of(kind::PING, 1, 0, &CANARY[..8])]),
            b"",
            "an acknowledgement without a PING gets no response"
        );
        let reset = frame_of(kind::RST_STREAM, 0, 1, b"code");
        assert_eq!(reported(&[reset]), frame_of(kind::RST_STREAM, 0, 1, &[0, 0, 0, 2]));
    }

    /// A malformed request closes its stream with an empty header block; trailers are ignored.
    #[test]
    fn malformed_request_becomes_empty_header_block() {
        let empty = |flags| frame_of(kind::HEADERS, flags, 1, &[]);
        for (name, value) in
            [("Upper", &b"x"[..]), ("connection", b"close"), (":path", b"/"), ("x", b"a\nb"), ("te", b"x")]
        {
            let said = frame_of(kind::HEADERS, flag::END_HEADERS, 1, &block(name, value));
            assert_eq!(reported(&[said]), empty(flag::END_HEADERS), "{name}");
        }
        let mut no_path = Vec::new();
        hpack::put_field(&mut no_path, ":method", b"POST");
        let said = frame_of(kind::HEADERS, flag::END_HEADERS, 1, &no_path);
        assert_eq!(reported(&[said]), empty(flag::END_HEADERS));
        let call = frame_of(kind::HEADERS, flag::END_HEADERS, 1, &block("x", b"y"));
        let mut trailers = Vec::new();
        hpack::put_field(&mut trailers, "x", CANARY);
        let flags = flag::END_HEADERS | flag::END_STREAM;
        let all = reported(&[call, frame_of(kind::HEADERS, flags, 1, &trailers)]);
        assert!(all.ends_with(&empty(flags)));
    }

    /// If the connection fails, h2 gets one CONTINUATION frame without HEADERS and nothing after it.
    #[test]
    fn faults_end_the_connection_with_their_code() {
        let fault = frame_of(kind::CONTINUATION, flag::END_HEADERS, 1, &[]);
        let open = frame_of(kind::HEADERS, 0, 1, &block("x", CANARY));
        let flood = vec![frame_of(kind::CONTINUATION, 0, 1, b""); BLOCK_FRAMES_MAX];
        let cases = [
            (vec![frame_of(kind::HEADERS, flag::END_HEADERS, 1, b"\x80")], code::COMPRESSION_ERROR),
            (vec![vec![0, 0x40, 1, 0, 0, 0, 0, 0, 1]], code::FRAME_SIZE_ERROR),
            (vec![open.clone(), frame_of(kind::DATA, 0, 1, CANARY)], code::PROTOCOL_ERROR),
            (vec![open.clone(), frame_of(kind::CONTINUATION, 4, 3, CANARY)], code::PROTOCOL_ERROR),
            (vec![frame_of(kind::CONTINUATION, 4, 1, CANARY)], code::PROTOCOL_ERROR),
            (vec![frame_of(kind::PUSH_PROMISE, 4, 1, CANARY)], code::PROTOCOL_ERROR),
            (vec![frame_of(kind::HEADERS, flag::PADDED | 4, 1, &[200, 1, 2])], code::PROTOCOL_ERROR),
            ([vec![open], flood].concat(), code::ENHANCE_YOUR_CALM),
        ];
        for (frames, expected) in cases {
            let more = frame_of(kind::DATA, 0, 1, CANARY);
            assert_eq!(reported(&[frames.concat(), more]), fault);
            let calls = Calls::new(8);
            let mut inbound = Inbound::new(calls.clone());
            let said = [PREFACE.to_vec(), frames.concat()].concat();
            let mut rest = &said[..];
            while !rest.is_empty() {
                let taken = inbound.feed(rest).unwrap();
                rest = &rest[taken..];
            }
            assert_eq!(calls.record_goaway(1), Some(expected));
        }
        assert!(Inbound::new(Calls::new(8)).feed(b"GET / HTTP/1.1\r\n").is_err());
    }
}
