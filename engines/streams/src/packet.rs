//! Packets that sessions send to a client. The transport converts packets to frames.

use bytes::Bytes;

/// Maximum payload of a packet, in bytes.
pub(crate) const PAYLOAD: usize = 32 << 10;

/// Maximum number of packets that wait for the client. With [`PAYLOAD`] this bounds the memory of a slow client.
pub(crate) const QUEUE: usize = 16;

/// A packet for the client. `stream` is a stream id of SPDY, or a channel of the WebSocket protocols.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    Data { stream: u32, bytes: Bytes },
    Finish { stream: u32 },
    Reply { stream: u32 },
    Reset { stream: u32, status: u32 },
    Ping { id: u32 },
}
