//! Certificates of containers, signed by the operator's CA.
//!
//! In goes the table `identity` of the configuration, then public keys with names; out come certificates. This crate is for the one
//! process that may read the CA's key: it starts no process, opens the two files of the CA and no other, and gives the key
//! to nobody. Names are judged here as executord has judged them.

#![forbid(unsafe_code)]

mod authority;
mod certificate;

pub use authority::{Authority, AuthorityError, SignError};

/// Encodes DER as PEM.
fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.extend(line.iter().map(|byte| char::from(*byte)));
        pem.push('\n');
    }
    pem.push_str(&format!("-----END {label}-----\n"));
    pem
}
