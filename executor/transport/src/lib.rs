//! Connections of executord: HTTP/2 over unix sockets and over TLS, each within its bounds.
//!
//! ```text
//!  client ──> slots, rates ──> client_socket ──────────────────> wire ──> the server's services
//!  client ──> tls (handshake, certificate) ──> slots ──> tls stream ──┘
//! ```
//! The input is accepted sockets, limits, and the server's decisions: whether a certificate identifies a caller
//! ([`tls::CertificatePolicy`]), whether a message may be decoded ([`wire::body::MessageCheck`]), how large the response of a
//! method can be ([`wire::budget::AnswerKind`]). The output is requests with their own fields and bodies.
//!
//! This crate knows frames, bytes of gRPC messages, bounds, handshakes and certificates. It knows no method, no name of a
//! caller, no metric and no configuration file. No content of a connection stays in memory after its call
//! (docs/adr/0014).

#![forbid(unsafe_code)]

pub mod client_socket;
pub mod linger;
pub mod rates;
pub mod registration;
pub mod slots;
pub mod tls;
pub mod wire;
