//! Encodes and decodes HTTP/2 frames (RFC 9113, 4.1): headers, types and flags.

/// The client's connection preface.
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Size of a frame header in bytes: length (3), type, flags, stream (4).
pub(super) const HEADER: usize = 9;
/// Maximum payload in both directions, in bytes. This is the default, which no setting changes.
pub(super) const PAYLOAD_MAX: usize = 16_384;

/// Types of frames.
pub(super) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

/// Flags of frames.
pub(super) mod flag {
    /// On DATA and HEADERS: the sender's last frame on the stream.
    pub(crate) const END_STREAM: u8 = 1;
    /// On SETTINGS and PING: an acknowledgement.
    pub(crate) const ACK: u8 = 1;
    /// On HEADERS and CONTINUATION: the header block ends here.
    pub(crate) const END_HEADERS: u8 = 4;
    /// On DATA and HEADERS: the payload is padded.
    pub(crate) const PADDED: u8 = 8;
    /// On HEADERS: five bytes of priority precede the block.
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// Connection errors (RFC 9113, 7).
pub(super) mod code {
    pub(crate) const PROTOCOL_ERROR: u32 = 1;
    pub(crate) const FRAME_SIZE_ERROR: u32 = 6;
    pub(crate) const COMPRESSION_ERROR: u32 = 9;
    pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;
    /// Highest defined error code.
    pub(crate) const LAST: u32 = 13;
    pub(crate) const INTERNAL_ERROR: u32 = 2;
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Payload length, in bytes.
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    /// Stream id without the reserved bit.
    pub(super) stream: u32,
}

impl Head {
    /// Decodes a frame header.
    pub(super) fn parse([high, middle, low, kind, flags, stream @ ..]: [u8; HEADER]) -> Self {
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        Self { length, kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff }
    }

    /// Returns true if `flag` is set in this header.
    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Appends the encoded frame header to `out`.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.length as u32).to_be_bytes()[1..]);
        out.extend_from_slice(&[self.kind, self.flags]);
        out.extend_from_slice(&self.stream.to_be_bytes());
    }
}

/// Appends a complete frame to `out`.
pub(super) fn put(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    Head { length: payload.len(), kind, flags, stream }.put(out);
    out.extend_from_slice(payload);
}

/// Overwrites a buffer that is not freed afterwards.
pub(super) fn wipe(bytes: &mut [u8]) {
    if !executor_secrets::CONTROL {
        bytes.fill(0);
        // Prevents the compiler from removing the zeros as dead stores.
        std::hint::black_box(bytes);
    }
}
