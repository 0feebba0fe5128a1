//! Defines the messages between the daemon and the process that holds the CA's key, over a separate connection.
//!
//! The signer first reports whether it can sign: [`SignerReady`] or a refusal. Then the signer replies to each
//! [`SignRequest`], one after the other. No message contains a private key: the signer receives public keys and returns
//! certificates.

use prost::{Message, Oneof};

use super::Refused;

/// Descriptor of an [`OpenSigner`]: the signer's side of a connection.
pub const SIGNER_FDS: [&str; 1] = ["connection"];
/// Maximum number of signer processes: the current process, and its successors.
pub const SIGNERS_MAX: usize = 4;
/// Length of a public key, in bytes: an uncompressed point of P-256.
pub const PUBLIC_KEY_LENGTH: usize = 65;

/// Starts a process that reads the CA's certificate and key, and signs certificates. A descriptor accompanies the
/// request. The launcher replies once the process is forked; the process reports its own status.
#[derive(Clone, PartialEq, Message)]
pub struct OpenSigner {}

/// A public key, and the names to certify.
#[derive(Clone, PartialEq, Message)]
pub struct SignRequest {
    /// Id of the container, which becomes the common name.
    #[prost(string, tag = "1")]
    pub container_id: String,
    /// Public key, an uncompressed point of P-256.
    #[prost(bytes = "vec", tag = "2")]
    pub public_key: Vec<u8>,
    /// Validity period of the certificate in seconds; 0 for the default in the settings.
    #[prost(uint64, tag = "3")]
    pub ttl_seconds: u64,
    /// Organizational units of the subject.
    #[prost(string, repeated, tag = "4")]
    pub organizational_units: Vec<String>,
    /// DNS names in the certificate.
    #[prost(string, repeated, tag = "5")]
    pub dns_names: Vec<String>,
    /// IP addresses in the certificate.
    #[prost(string, repeated, tag = "6")]
    pub ip_addresses: Vec<String>,
    /// SPIFFE ID in the certificate, or an empty string.
    #[prost(string, tag = "7")]
    pub spiffe_id: String,
}

/// Message from the signer to the daemon.
#[derive(Clone, PartialEq, Message)]
pub struct SignerReply {
    /// Content; `None` if a newer peer sent a reply that is unknown here.
    #[prost(oneof = "SignerAnswer", tags = "1, 2, 3")]
    pub answer: Option<SignerAnswer>,
}

/// Contents of the signer's replies.
#[derive(Clone, PartialEq, Oneof)]
pub enum SignerAnswer {
    /// The signer can sign. This is the signer's first message.
    #[prost(message, tag = "1")]
    Ready(SignerReady),
    /// The signed certificate.
    #[prost(message, tag = "2")]
    Signed(Signed),
    /// The signer cannot sign at all, or refuses this request.
    #[prost(message, tag = "3")]
    Refused(Refused),
}

/// Description of the CA.
#[derive(Clone, PartialEq, Message)]
pub struct SignerReady {
    /// Subject of the CA's certificate, for display.
    #[prost(string, tag = "1")]
    pub subject: String,
    /// Expiry of the CA's certificate, in seconds since the epoch.
    #[prost(uint64, tag = "2")]
    pub not_after: u64,
    /// All certificates of the CA's file (PEM).
    #[prost(string, tag = "3")]
    pub chain: String,
}

/// A signed certificate.
#[derive(Clone, PartialEq, Message)]
pub struct Signed {
    /// Signed certificate (PEM).
    #[prost(string, tag = "1")]
    pub certificate: String,
    /// Serial number of the certificate, big-endian.
    #[prost(bytes = "vec", tag = "2")]
    pub serial: Vec<u8>,
    /// Start of validity, in seconds since the epoch: shortly before the current time.
    #[prost(uint64, tag = "3")]
    pub not_before: u64,
    /// Expiry, in seconds since the epoch.
    #[prost(uint64, tag = "4")]
    pub not_after: u64,
}
