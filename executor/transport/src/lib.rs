//! Serves the connections of executord: HTTP/2 over unix sockets and over TLS, each with its limits.
//!
//! ```text
//!  client ──> slots, rates ──> client_socket ──────────────────> wire ──> the server's services
//!  client ──> tls (handshake, certificate) ──> slots ──> tls stream ──┘
//! ```
//! The input is accepted sockets, limits, and the server's decisions: whether a certificate identifies a caller
//! ([`tls::CertificatePolicy`]), whether a message may be decoded ([`wire::body::MessageCheck`]), how large the
//! response of a method can be ([`wire::budget::AnswerKind`]). The output is complete requests: the header fields and
//! bodies that the client sent.
//!
//! This crate handles frames, gRPC messages as bytes, limits, handshakes and certificates. The crate knows no gRPC
//! method, caller name, metric or configuration file. After a call, no data of the call stays in the memory of the
//! connection (docs/adr/0014).

#![forbid(unsafe_code)]

pub mod client_socket;
pub mod linger;
pub mod rates;
pub mod registration;
pub mod slots;
pub mod tls;
pub mod wire;
