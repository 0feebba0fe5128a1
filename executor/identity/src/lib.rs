//! Signs container certificates with the operator's CA.
//!
//! The input is the table `identity` of the configuration, and then public keys with names. The output is certificates.
//! Only one process uses this crate and may read the CA's key. The crate starts no process, opens only the two files of
//! the CA, and never passes the key to another process. The crate checks names by the same rules as executord.

#![forbid(unsafe_code)]

mod authority;
mod certificate;

pub use authority::{Authority, AuthorityError, SignError};

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
