//! Clients of the URLs that executor-cri returns: exec and attach over WebSocket, port-forward over SPDY/3.1.
//!
//! Header blocks of SPDY are sent in stored blocks of DEFLATE, which need no dictionary. The server's header blocks are
//! not read.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;

use crate::wait::DEFAULT_TIMEOUT;

/// Shell command that prints lines until /tmp/go exists. A client that receives a line is attached.
pub const UNTIL_GO: &str = "until [ -e /tmp/go ]; do echo ready; sleep 0.05; done";

/// Returns the output that follows the lines of [`UNTIL_GO`].
pub fn after_go(mut output: &[u8]) -> &[u8] {
    while let Some(rest) = output.strip_prefix(b"ready\n") {
        output = rest;
    }
    output
}

/// Connects to a URL and sends a request. Returns the connection and the head of the response.
fn request(url: &str, method: &str, headers: &str) -> (TcpStream, String) {
    let (host, path) = url.strip_prefix("http://").and_then(|url| url.split_once('/')).expect("a URL");
    let mut stream = TcpStream::connect(host).expect("the server");
    stream.set_read_timeout(Some(DEFAULT_TIMEOUT)).expect("a timeout");
    let request = format!("{method} /{path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).expect("the request is sent");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a response");
        head.push(byte[0]);
    }
    (stream, String::from_utf8_lossy(&head).into_owned())
}

/// Connects to a URL and requests another protocol. Returns the connection.
///
/// # Panics
/// Panics if the upgrade is refused.
fn upgrade(url: &str, method: &str, headers: &str) -> TcpStream {
    let (stream, head) = request(url, method, &format!("Connection: Upgrade\r\n{headers}"));
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    stream
}

/// Requests a URL without an upgrade; the request invalidates the token of the URL. Returns the HTTP status code.
///
/// # Panics
/// Panics if there is no response.
pub fn response_code(url: &str) -> String {
    let (_, head) = request(url, "GET", "Connection: close\r\n");
    head.split(' ').nth(1).expect("a status line").to_owned()
}

/// A client of exec or attach with protocol `v5.channel.k8s.io`.
pub struct Channels {
    stream: TcpStream,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Status that ends the stream, as JSON.
    pub status: Vec<u8>,
}

impl Channels {
    /// Opens a URL.
    ///
    /// # Panics
    /// Panics if the upgrade is refused.
    pub fn open(url: &str) -> Self {
        let headers = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n";
        let stream = upgrade(url, "GET", headers);
        Self { stream, stdout: Vec::new(), stderr: Vec::new(), status: Vec::new() }
    }

    /// Reads one message. Returns false at the end of the connection.
    ///
    /// # Errors
    /// Returns an error if the connection breaks.
    pub fn read_message(&mut self) -> io::Result<bool> {
        let mut head = [0; 2];
        match self.stream.read_exact(&mut head) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        let length = match head[1] & 0x7f {
            126 => {
                let mut length = [0; 2];
                self.stream.read_exact(&mut length)?;
                u64::from(u16::from_be_bytes(length))
            }
            127 => {
                let mut length = [0; 8];
                self.stream.read_exact(&mut length)?;
                u64::from_be_bytes(length)
            }
            length => length.into(),
        };
        let mut payload = vec![0; usize::try_from(length).expect("a length")];
        self.stream.read_exact(&mut payload)?;
        if head[0] & 0x0f == 8 {
            return Ok(false);
        }
        match payload.split_first() {
            Some((1, bytes)) => self.stdout.extend(bytes),
            Some((2, bytes)) => self.stderr.extend(bytes),
            Some((3, bytes)) => self.status.extend(bytes),
            _ => {}
        }
        Ok(true)
    }

    /// Reads until there is standard output.
    ///
    /// # Errors
    /// Returns an error if the connection breaks or ends first.
    pub fn until_output(&mut self) -> io::Result<()> {
        while self.stdout.is_empty() {
            if !self.read_message()? {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Reads until the end of the connection.
    ///
    /// # Errors
    /// Returns an error if the connection breaks.
    pub fn end(mut self) -> io::Result<Self> {
        while self.read_message()? {}
        Ok(self)
    }

    /// Sends standard input.
    pub fn send_input(&mut self, bytes: &[u8]) {
        let length = u8::try_from(bytes.len() + 1).ok().filter(|length| *length < 126).expect("a short input");
        // A mask of zeros changes nothing.
        let message = [&[0x82, 0x80 | length, 0, 0, 0, 0, 0][..], bytes].concat();
        self.stream.write_all(&message).expect("the connection is open");
    }
}

/// Checksum of SPDY's dictionary for header blocks.
const DICTIONARY: [u8; 4] = 0xe3c6_a7c2_u32.to_be_bytes();
const SYN_STREAM: u16 = 1;
const RST_STREAM: u16 = 3;
const FINISHED: u8 = 1;

/// A session of port-forward, which connects to several ports.
pub struct PortForward {
    stream: TcpStream,
    next: u32,
    has_headers: bool,
    /// Bytes that were received on each stream.
    received: HashMap<u32, Received>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Received {
    pub bytes: Vec<u8>,
    pub is_finished: bool,
    pub is_reset: bool,
}

/// A connection to a port: two streams of a session.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    error: u32,
    data: u32,
}

impl PortForward {
    /// Opens a URL.
    ///
    /// # Panics
    /// Panics if the upgrade is refused.
    pub fn open(url: &str) -> Self {
        let headers = "Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: portforward.k8s.io\r\nContent-Length: 0\r\n";
        let stream = upgrade(url, "POST", headers);
        Self { stream, next: 1, has_headers: false, received: HashMap::new() }
    }

    /// Opens a connection to a port.
    pub fn connect(&mut self, port: u16) -> Pair {
        let id = self.next.to_string();
        let [error, data] = ["error", "data"].map(|kind| {
            let stream = self.next;
            self.next += 2;
            let headers = [("streamtype", kind), ("port", &port.to_string()), ("requestid", &id)];
            let mut payload = [&stream.to_be_bytes()[..], &[0; 6]].concat();
            payload.extend(self.encoded(&headers));
            let flags = if kind == "error" { FINISHED } else { 0 };
            self.send_control(SYN_STREAM, flags, &payload);
            stream
        });
        Pair { error, data }
    }

    fn encoded(&mut self, headers: &[(&str, &str)]) -> Vec<u8> {
        let number = |length: usize| u32::try_from(length).expect("a short header").to_be_bytes();
        let mut block = number(headers.len()).to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            block.extend(number(text.len()));
            block.extend(text.as_bytes());
        }
        let mut encoded = Vec::new();
        if !self.has_headers {
            self.has_headers = true;
            encoded.extend([0x78, 0x20]); // zlib, with a dictionary
            encoded.extend(DICTIONARY);
        }
        let length = u16::try_from(block.len()).expect("a short block");
        encoded.push(0);
        encoded.extend(length.to_le_bytes());
        encoded.extend((!length).to_le_bytes());
        encoded.extend(block);
        encoded
    }

    fn send_control(&mut self, kind: u16, flags: u8, payload: &[u8]) {
        let head = [0x8003_u16.to_be_bytes(), kind.to_be_bytes()].concat();
        self.send_frame(&head, flags, payload);
    }

    fn send_frame(&mut self, head: &[u8], flags: u8, payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
        let frame = [head, &[flags], &length[1..], payload].concat();
        self.stream.write_all(&frame).expect("the session is open");
    }

    pub fn send(&mut self, pair: Pair, bytes: &[u8]) {
        self.send_frame(&pair.data.to_be_bytes(), 0, bytes);
    }

    /// Ends the data that is sent to a port.
    pub fn finish(&mut self, pair: Pair) {
        self.send_frame(&pair.data.to_be_bytes(), FINISHED, &[]);
    }

    /// Reads until `is_met` accepts the bytes received on a pair's data stream.
    ///
    /// # Panics
    /// Panics if the session ends first.
    pub fn until(&mut self, pair: Pair, is_met: impl Fn(&Received) -> bool) -> Received {
        loop {
            let received = self.received.entry(pair.data).or_default();
            if is_met(received) {
                return received.clone();
            }
            self.read_frame().unwrap_or_else(|error| panic!("the session ended: {error}"));
        }
    }

    /// Returns the messages that the error stream of a pair has received.
    pub fn error(&self, pair: Pair) -> String {
        let received = self.received.get(&pair.error).cloned().unwrap_or_default();
        String::from_utf8_lossy(&received.bytes).into_owned()
    }

    fn read_frame(&mut self) -> io::Result<()> {
        let mut head = [0; 8];
        self.stream.read_exact(&mut head)?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize];
        self.stream.read_exact(&mut payload)?;
        let first = |bytes: &[u8]| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let is_control = head[0] & 0x80 != 0;
        let stream = if is_control { payload.get(..4).map_or(0, first) } else { first(&head) };
        let received = self.received.entry(stream).or_default();
        received.is_finished |= head[4] & FINISHED != 0;
        match is_control {
            false => received.bytes.extend(payload),
            true => received.is_reset |= u16::from_be_bytes([head[2], head[3]]) == RST_STREAM,
        }
        Ok(())
    }
}
