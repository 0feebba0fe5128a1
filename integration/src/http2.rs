//! A low-level HTTP/2 client that can send frames which no library sends. The client keeps its connection open
//! regardless of the server's responses.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::wait::DEFAULT_TIMEOUT;

/// Frame type of RFC 9113, section 6.
pub const DATA: u8 = 0;
/// Frame type of RFC 9113, section 6.
pub const HEADERS: u8 = 1;
/// Frame type of RFC 9113, section 6.
pub const RST_STREAM: u8 = 3;
/// Frame type of RFC 9113, section 6.
pub const SETTINGS: u8 = 4;
/// Frame type of RFC 9113, section 6.
pub const PING: u8 = 6;
/// Frame type of RFC 9113, section 6.
pub const GOAWAY: u8 = 7;
/// Frame type of RFC 9113, section 6.
pub const WINDOW_UPDATE: u8 = 8;
/// Frame type of RFC 9113, section 6.
pub const CONTINUATION: u8 = 9;
/// Frame flag of RFC 9113, section 6.
pub const END_STREAM: u8 = 1;
/// Frame flag of RFC 9113, section 6.
pub const END_HEADERS: u8 = 4;
/// Frame flag of RFC 9113, section 6.
pub const PADDED: u8 = 8;

/// Duration of silence after which all data from the peer is considered received.
const IDLE_TIMEOUT: Duration = Duration::from_millis(200);

/// Stream that carries a connection.
pub trait Transport: Read + Write + Send {
    /// Sets the timeout of reads.
    ///
    /// # Errors
    /// Returns an error if the socket option cannot be set.
    fn read_within(&self, limit: Duration) -> io::Result<()>;

    /// Sets the timeout of writes.
    ///
    /// # Errors
    /// Returns an error if the socket option cannot be set.
    fn write_within(&self, limit: Duration) -> io::Result<()>;
}

impl Transport for UnixStream {
    fn read_within(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))
    }

    fn write_within(&self, limit: Duration) -> io::Result<()> {
        self.set_write_timeout(Some(limit))
    }
}

impl Transport for rustls::StreamOwned<rustls::ClientConnection, TcpStream> {
    fn read_within(&self, limit: Duration) -> io::Result<()> {
        self.sock.set_read_timeout(Some(limit))
    }

    fn write_within(&self, limit: Duration) -> io::Result<()> {
        self.sock.set_write_timeout(Some(limit))
    }
}

/// HTTP/2 connection under the control of the test.
pub struct RawClient {
    stream: Box<dyn Transport>,
    read: Vec<u8>,
    newest: u32,
    pings: u64,
}

/// Connects with the uid `user` and the group of root.
///
/// # Errors
/// Returns an error if the socket cannot be connected.
///
/// # Panics
/// Panics if this process is not root.
pub fn connect_as(socket: &Path, user: u32) -> io::Result<UnixStream> {
    use rustix::thread::{CapabilitiesSecureBits, Uid, set_capabilities_secure_bits, set_thread_res_uid};
    let connect = || {
        // The thread keeps root's capability to open any file.
        set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP).expect("root");
        let user = Uid::from_raw(user);
        set_thread_res_uid(user, user, user).expect("root");
        UnixStream::connect(socket)
    };
    std::thread::scope(|scope| scope.spawn(connect).join()).expect("a thread")
}

/// Encodes a gRPC message with its length prefix.
pub fn message(bytes: &[u8]) -> Vec<u8> {
    [&[0], &(bytes.len() as u32).to_be_bytes()[..], bytes].concat()
}

/// Encodes a frame.
fn frame(kind: u8, flags: u8, on: u32, payload: &[u8]) -> Vec<u8> {
    [&(payload.len() as u32).to_be_bytes()[1..], &[kind, flags], &on.to_be_bytes(), payload].concat()
}

/// Encodes a header string without Huffman coding.
fn text(text: &[u8]) -> Vec<u8> {
    let mut coded = Vec::new();
    let mut left = text.len();
    if left < 127 {
        coded.push(left as u8);
    } else {
        coded.push(127);
        left -= 127;
        while left >= 128 {
            coded.push(left as u8 | 128);
            left >>= 7;
        }
        coded.push(left as u8);
    }
    [&coded, text].concat()
}

/// Encodes a header field for the peer's dynamic table (literal with incremental indexing, RFC 7541, section 6.2.1).
pub fn field(name: &str, value: &[u8]) -> Vec<u8> {
    [vec![0x40], text(name.as_bytes()), text(value)].concat()
}

/// Encodes the header fields of a gRPC call.
pub fn fields(method: &str) -> Vec<u8> {
    let own = [field(":path", method.as_bytes()), field(":authority", b"/run/x.sock")];
    let others = [field("content-type", b"application/grpc"), field("te", b"trailers")];
    [&[0x83, 0x86][..], &own.concat(), &others.concat()].concat()
}

impl RawClient {
    /// Connects and sends the connection preface. The client never acknowledges the server's settings.
    pub fn connect(socket: &Path) -> Self {
        // Large enough for every response.
        let mut raw = Self::with_window(socket, 0x7fff_ffff).expect("a socket that is served");
        raw.frame(8, 0, 0, &[0x7f, 0, 0, 0]);
        raw
    }

    /// Connects with a flow-control window of `window` bytes for the body of each response; 0 allows no data.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be connected or written.
    pub fn with_window(socket: &Path, window: u32) -> io::Result<Self> {
        Self::over(UnixStream::connect(socket)?, window)
    }

    /// Starts HTTP/2 over a connected stream, with a flow-control window of `window` bytes for the body of each
    /// response.
    ///
    /// # Errors
    /// Returns an error if the stream cannot be written.
    pub fn over(stream: impl Transport + 'static, window: u32) -> io::Result<Self> {
        let mut stream: Box<dyn Transport> = Box::new(stream);
        stream.read_within(DEFAULT_TIMEOUT)?;
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")?;
        stream.write_all(&frame(SETTINGS, 0, 0, &[&[0, 4], &window.to_be_bytes()[..]].concat()))?;
        Ok(Self { stream, read: Vec::new(), newest: 0, pings: 0 })
    }

    /// Sets the timeout of writes. A write fails if the peer does not read in time.
    ///
    /// # Errors
    /// Returns an error if the socket option cannot be set.
    pub fn bounded(self, timeout: Duration) -> io::Result<Self> {
        self.stream.write_within(timeout)?;
        Ok(self)
    }

    /// Makes a complete call with one message. The peer may have closed the connection or stopped reading.
    ///
    /// # Errors
    /// Returns an error if the write fails.
    pub fn try_call(&mut self, method: &str, bytes: &[u8]) -> io::Result<()> {
        let on = self.next();
        self.stream.write_all(&frame(HEADERS, END_HEADERS, on, &fields(method)))?;
        message(bytes).chunks(16_384).try_for_each(|part| self.stream.write_all(&frame(DATA, 0, on, part)))?;
        self.stream.write_all(&frame(DATA, END_STREAM, on, &[]))
    }

    /// Makes `count` calls of a server-streaming method. Returns the number of accepted calls.
    ///
    /// # Errors
    /// Returns an error if a write fails.
    ///
    /// # Panics
    /// Panics if the connection closes before all calls have a response.
    pub fn open_streams(&mut self, method: &str, count: usize) -> io::Result<usize> {
        for _ in 0..count {
            self.try_call(method, &[])?;
        }
        let (mut answered, mut accepted) = (0, 0);
        self.until(|kind, flags, _, _| {
            if kind == HEADERS {
                answered += 1;
                accepted += usize::from(flags & END_STREAM == 0);
            }
            answered == count
        });
        Ok(accepted)
    }

    /// Reads and discards input until the connection is silent, waiting up to `first` for the first byte. Returns the
    /// number of bytes.
    pub fn drain(&mut self, first: Duration) -> usize {
        let (mut buffer, mut all, mut timeout) = ([0; 65_536], self.read.len(), first);
        self.read.clear();
        loop {
            let _ = self.stream.read_within(timeout);
            match self.stream.read(&mut buffer) {
                Ok(n @ 1..) => all += n,
                _ => break,
            }
            timeout = IDLE_TIMEOUT;
        }
        let _ = self.stream.read_within(DEFAULT_TIMEOUT);
        all
    }

    /// Returns the id of a new stream.
    fn next(&mut self) -> u32 {
        self.newest += if self.newest == 0 { 1 } else { 2 };
        self.newest
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the connection is open");
    }

    /// Writes a frame. The peer may have closed the connection or stopped reading.
    ///
    /// # Errors
    /// Returns an error if the write fails.
    pub fn try_frame(&mut self, kind: u8, flags: u8, on: u32, payload: &[u8]) -> io::Result<()> {
        self.stream.write_all(&frame(kind, flags, on, payload))
    }

    /// Waits for the peer's settings and acknowledges them. The peer closes connections without a timely
    /// acknowledgement.
    pub fn settle(&mut self) {
        self.until(|kind, flags, _, _| kind == SETTINGS && flags == 0);
        self.frame(SETTINGS, 1, 0, &[]);
    }

    /// Writes a frame.
    pub fn frame(&mut self, kind: u8, flags: u8, on: u32, payload: &[u8]) {
        self.write(&frame(kind, flags, on, payload));
    }

    /// Opens a stream with `fields` as headers and returns its id.
    pub fn open(&mut self, fields: &[u8], end: bool) -> u32 {
        let on = self.next();
        let mut parts = fields.chunks(16_384).peekable();
        let mut kind = HEADERS;
        let mut flags = if end { END_STREAM } else { 0 };
        while let Some(part) = parts.next() {
            flags |= if parts.peek().is_none() { END_HEADERS } else { 0 };
            self.frame(kind, flags, on, part);
            (kind, flags) = (CONTINUATION, 0);
        }
        on
    }

    /// Makes a complete call with its body in DATA frames of `piece` bytes.
    pub fn call(&mut self, fields: &[u8], body: &[u8], piece: usize) -> u32 {
        let on = self.open(fields, false);
        for part in body.chunks(piece) {
            self.frame(DATA, 0, on, part);
        }
        self.frame(DATA, END_STREAM, on, &[]);
        on
    }

    /// Reads frames until `fits` returns true, and returns the payload of that frame. No frame is acknowledged.
    pub fn until(&mut self, mut fits: impl FnMut(u8, u8, u32, &[u8]) -> bool) -> Vec<u8> {
        loop {
            while let Some(length) =
                self.read.get(..3).map(|length| u32::from_be_bytes([0, length[0], length[1], length[2]]))
            {
                let whole = 9 + length as usize;
                if self.read.len() < whole {
                    break;
                }
                let frame: Vec<u8> = self.read.drain(..whole).collect();
                let on = u32::from_be_bytes([frame[5], frame[6], frame[7], frame[8]]);
                if fits(frame[3], frame[4], on, &frame[9..]) {
                    return frame[9..].to_vec();
                }
            }
            let mut buffer = [0; 16_384];
            let count = self.stream.read(&mut buffer).expect("data from the peer");
            assert_ne!(count, 0, "the connection was closed");
            self.read.extend_from_slice(&buffer[..count]);
        }
    }

    /// Waits until a stream has a complete response or is reset.
    pub fn wait_for_answer(&mut self, stream: u32) {
        self.until(|kind, flags, on, _| {
            on == stream && (kind == RST_STREAM || (matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0))
        });
    }

    /// Sends a PING and waits for its acknowledgement, which shows that the peer has read all earlier frames and that
    /// the connection is open.
    pub fn wait_until_read(&mut self) {
        self.pings += 1;
        let payload = self.pings.to_be_bytes();
        self.frame(PING, 0, 0, &payload);
        self.until(|kind, flags, _, said| kind == PING && flags == 1 && said == payload);
    }

    /// Waits for GOAWAY and returns its error code.
    pub fn read_goaway(&mut self) -> u32 {
        let said = self.until(|kind, _, _, _| kind == GOAWAY);
        u32::from_be_bytes([said[4], said[5], said[6], said[7]])
    }
}
