//! Messages between the daemon and the process that holds the CA's key, over a connection of their own.
//!
//! The signer says first whether it can sign: [`SignerReady`] or a refusal. Then it answers each [`SignRequest`], one after the
//! other. No private key is in any message: the signer gets public keys and gives certificates.

use prost::{Message, Oneof};

use super::Refused;

/// Descriptor of an [`OpenSigner`]: the signer's end of a connection.
pub const SIGNER_FDS: [&str; 1] = ["connection"];
/// Most processes that sign at a time: the one in force, and those that are to follow it.
pub const SIGNERS_MAX: usize = 4;
/// Length of a public key, in bytes: an uncompressed point of P-256.
pub const PUBLIC_KEY_LENGTH: usize = 65;

/// Starts a process that reads the CA's certificate and key, and signs. A descriptor accompanies it. The answer comes when the
/// process is forked; what it finds it tells itself.
#[derive(Clone, PartialEq, Message)]
pub struct OpenSigner {}

/// A public key, and the names to be certified.
#[derive(Clone, PartialEq, Message)]
pub struct SignRequest {
    /// Id of the container: the common name.
    #[prost(string, tag = "1")]
    pub container_id: String,
    /// Public key, an uncompressed point of P-256.
    #[prost(bytes = "vec", tag = "2")]
    pub public_key: Vec<u8>,
    /// Life of the certificate in seconds; 0 for that of the settings.
    #[prost(uint64, tag = "3")]
    pub ttl_seconds: u64,
    /// Organizational units.
    #[prost(string, repeated, tag = "4")]
    pub organizational_units: Vec<String>,
    /// DNS names.
    #[prost(string, repeated, tag = "5")]
    pub dns_names: Vec<String>,
    /// Addresses.
    #[prost(string, repeated, tag = "6")]
    pub ip_addresses: Vec<String>,
    /// SPIFFE ID.
    #[prost(string, tag = "7")]
    pub spiffe_id: String,
}

/// Message of the signer.
#[derive(Clone, PartialEq, Message)]
pub struct SignerReply {
    /// The message.
    #[prost(oneof = "SignerAnswer", tags = "1, 2, 3")]
    pub answer: Option<SignerAnswer>,
}

/// What a signer tells.
#[derive(Clone, PartialEq, Oneof)]
pub enum SignerAnswer {
    /// It can sign.
    #[prost(message, tag = "1")]
    Ready(SignerReady),
    /// A certificate.
    #[prost(message, tag = "2")]
    Signed(Signed),
    /// Why it cannot sign, or not this.
    #[prost(message, tag = "3")]
    Refused(Refused),
}

/// The CA.
#[derive(Clone, PartialEq, Message)]
pub struct SignerReady {
    /// Subject of the CA's certificate, for people.
    #[prost(string, tag = "1")]
    pub subject: String,
    /// End of the CA's certificate, in seconds since the epoch.
    #[prost(uint64, tag = "2")]
    pub not_after: u64,
    /// All certificates of the CA's file, PEM.
    #[prost(string, tag = "3")]
    pub chain: String,
}

/// A certificate.
#[derive(Clone, PartialEq, Message)]
pub struct Signed {
    /// The certificate, PEM.
    #[prost(string, tag = "1")]
    pub certificate: String,
    /// Serial number, big-endian.
    #[prost(bytes = "vec", tag = "2")]
    pub serial: Vec<u8>,
    /// Beginning, in seconds since the epoch: a little before now.
    #[prost(uint64, tag = "3")]
    pub not_before: u64,
    /// End, in seconds since the epoch.
    #[prost(uint64, tag = "4")]
    pub not_after: u64,
}
