//! Serves HTTP/2 connections and keeps their content out of h2, the HTTP/2 library.
//!
//! ```text
//!            client
//!     requests │ ▲ responses
//!              ▼ │
//!  inbound, outbound   frames, HPACK, between the socket and h2              socket
//!   bytes │ ▲      │ ▲
//!         │ │      │ │ zeros of the same length, numbers, the streams' ids
//!         │ │      ▼ │
//!         │ │   hyper, h2   streams, windows, settings, their order
//!         │ │      │ ▲
//!         ▼ │      ▼ │
//!        calls ── body   whole gRPC messages, bounded before they are decoded
//! ```
//! h2 reads into one buffer per connection and returns slices of it. h2 keeps header fields that a client adds to the
//! dynamic table, and copies small responses into a write buffer. The client determines the amount and the lifetime of
//! this data. Therefore no content of requests and responses passes through h2 (docs/adr/0014): this module parses the
//! frames, keeps fields and bodies by stream, and passes frames of the same shape without content to h2. A stream's
//! memory is freed when the stream is closed, and freed memory is overwritten (`executor_secrets::ZeroOnFree`).
//!
//! The input is a socket and a service; the output is complete requests, with the header fields and bodies that the
//! client sent. All byte limits of a connection are enforced here: header blocks, messages (`body`), unread responses
//! (`budget`). The service decides which content a message may have ([`body::MessageCheck`]).

pub mod body;
pub mod budget;
mod calls;
pub mod conversation;
mod frame;
mod hpack;
mod huffman;
mod inbound;
mod outbound;
mod socket;

pub use calls::Calls;
pub use inbound::FIELDS_MAX;
pub use socket::Wire;

/// Parses a client's bytes in pieces of `piece` bytes, and returns the bytes that h2 receives for them. Stops if the
/// client violates HTTP/2.
pub fn shadow(bytes: &[u8], piece: usize) -> Vec<u8> {
    let mut inbound = inbound::Inbound::new(Calls::new(8));
    let mut reported = Vec::new();
    let mut room = [0xaa; 1000];
    for mut rest in bytes.chunks(piece.max(1)) {
        while !rest.is_empty() {
            let Ok(taken) = inbound.feed(rest) else { return reported };
            rest = &rest[taken..];
            loop {
                let given = inbound.give(&mut room);
                reported.extend_from_slice(&room[..given]);
                if given == 0 {
                    break;
                }
            }
        }
    }
    reported
}
