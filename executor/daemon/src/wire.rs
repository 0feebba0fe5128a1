//! A connection whose HTTP/2 library holds no byte of what it carries.
//!
//! ```text
//!            client
//!     requests │ ▲ answers
//!              ▼ │
//!  inbound, outbound   frames, HPACK, between the socket and the library     socket
//!   bytes │ ▲      │ ▲
//!         │ │      │ │ zeros of the same length, numbers, the streams' ids
//!         │ │      ▼ │
//!         │ │   hyper, h2   streams, windows, settings, their order
//!         │ │      │ ▲
//!         ▼ │      ▼ │
//!        calls ── body   whole gRPC messages, bounded before they are decoded
//! ```
//! h2 reads into one buffer for each connection, hands out pieces of it, keeps header fields that a client has it
//! remember, and copies small answers into a buffer for writing. What is kept, and for how long, depends on what a
//! client sends. So nothing that a client sends or is answered goes through it (ADR 14): this module reads the frames, keeps fields and
//! bodies by their streams, and lets the library have frames of the same shape without content. What a
//! stream holds is freed with the stream, and what is freed is overwritten (`executor_secrets::ZeroOnFree`).
//!
//! In goes a socket and a service, out come requests with their own fields and bodies. Whatever is bounded by bytes of a
//! connection is bounded here: blocks of fields, messages (`weight`), answers that nobody reads (`budget`).

pub(crate) mod body;
pub(crate) mod budget;
pub(crate) mod calls;
pub(crate) mod conversation;
mod frame;
mod hpack;
mod huffman;
mod inbound;
mod outbound;
mod socket;
mod weight;

pub(crate) use calls::Calls;
pub(crate) use inbound::FIELDS_MAX;
pub(crate) use socket::Wire;

/// What the HTTP/2 library is told of a client's bytes; they come in pieces of this size. Ends where the client speaks something else.
pub fn shadow(bytes: &[u8], piece: usize) -> Vec<u8> {
    let mut inbound = inbound::Inbound::new(Calls::new(8));
    let mut told = Vec::new();
    let mut room = [0xaa; 1000];
    for mut rest in bytes.chunks(piece.max(1)) {
        while !rest.is_empty() {
            let Ok(taken) = inbound.feed(rest) else { return told };
            rest = &rest[taken..];
            loop {
                let given = inbound.give(&mut room);
                told.extend_from_slice(&room[..given]);
                if given == 0 {
                    break;
                }
            }
        }
    }
    told
}

/// The cost of decoding a method's request is within bounds; the refusal says why it is not.
///
/// # Errors
/// It is not.
pub fn judge_message(method: &str, message: &[u8]) -> Result<(), tonic::Status> {
    weight::Weigher::of(method).judge(message)
}
