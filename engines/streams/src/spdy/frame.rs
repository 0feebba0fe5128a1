//! SPDY/3.1 frames that a server reads or writes.

/// Length of a frame's header, in bytes.
pub(crate) const HEADER: usize = 8;

/// Maximum length of a control frame, in bytes. Data frames are read in pieces and have no limit.
pub(crate) const MAX_CONTROL: usize = 64 << 10;

const VERSION: u16 = 3;
const FIN: u8 = 1;

pub(crate) const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
pub(crate) const RST_STREAM: u16 = 3;
pub(crate) const PING: u16 = 6;
pub(crate) const HEADERS: u16 = 8;

pub(crate) const PROTOCOL_ERROR: u32 = 1;
pub(crate) const REFUSED_STREAM: u32 = 3;
pub(crate) const CANCEL: u32 = 5;
pub(crate) const FLOW_CONTROL_ERROR: u32 = 7;

/// Header of a frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Head {
    Data { stream: u32, fin: bool, length: usize },
    Control { kind: u16, fin: bool, length: usize },
}

/// Parses the header of a frame.
///
/// # Errors
///
/// Returns the reason if the version is unknown or a control frame is too long.
pub(crate) fn head(bytes: [u8; HEADER]) -> Result<Head, &'static str> {
    let word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let fin = bytes[4] & FIN != 0;
    let length = u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]) as usize;
    if word >> 31 == 0 {
        return Ok(Head::Data { stream: word, fin, length });
    }
    let [version, kind] = [(word >> 16) as u16 & 0x7fff, word as u16];
    if version != VERSION {
        return Err("unsupported version of SPDY");
    }
    if length > MAX_CONTROL {
        return Err("control frame exceeds 64 KiB");
    }
    Ok(Head::Control { kind, fin, length })
}

/// Returns the big-endian number at `offset`.
pub(crate) fn word(payload: &[u8], offset: usize) -> Option<u32> {
    let bytes = payload.get(offset..offset.checked_add(4)?)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// Returns a data frame.
pub(crate) fn data(stream: u32, fin: bool, bytes: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER + bytes.len());
    frame.extend_from_slice(&(stream & 0x7fff_ffff).to_be_bytes());
    frame.extend_from_slice(&flags(fin, bytes.len()));
    frame.extend_from_slice(bytes);
    frame
}

fn flags(fin: bool, length: usize) -> [u8; 4] {
    debug_assert!(length < 1 << 24, "length of a frame");
    let [_, high, middle, low] = (length as u32).to_be_bytes();
    [u8::from(fin) * FIN, high, middle, low]
}

fn control(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER + payload.len());
    frame.extend_from_slice(&(VERSION | 0x8000).to_be_bytes());
    frame.extend_from_slice(&kind.to_be_bytes());
    frame.extend_from_slice(&flags(false, payload.len()));
    frame.extend_from_slice(payload);
    frame
}

/// Returns a `SYN_REPLY` with a compressed block of headers.
pub(crate) fn reply(stream: u32, headers: &[u8]) -> Vec<u8> {
    control(SYN_REPLY, &[&stream.to_be_bytes(), headers].concat())
}

/// Returns an `RST_STREAM`.
pub(crate) fn reset(stream: u32, status: u32) -> Vec<u8> {
    control(RST_STREAM, &[stream.to_be_bytes(), status.to_be_bytes()].concat())
}

/// Returns a `PING`.
pub(crate) fn ping(id: u32) -> Vec<u8> {
    control(PING, &id.to_be_bytes())
}
