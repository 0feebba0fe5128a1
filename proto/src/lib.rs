//! The executor's public interface: the messages and the gRPC service of `executor.v1`, for the daemon and its clients.
//!
//! The input is the `.proto` files under `executor/v1`. The output is the generated types, the service's client and
//! server, and the descriptor set for gRPC reflection. Messages that can carry a secret have no derived `Debug`; the
//! hand-written implementations in [`v1`] print names and sizes.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod actions;
mod redact;
mod variables;
mod wiped;

pub use wiped::{Wipe, Wiped};

/// Version 1 of the interface.
#[allow(missing_docs, unused_qualifications, clippy::all, clippy::unwrap_used, clippy::map_unwrap_or)] // generated
pub mod v1 {
    tonic::include_proto!("executor.v1");
}

/// Overwrites bytes and their spare capacity with zeros, and empties the vector. `Zeroize` does the same byte by byte,
/// which takes a hundred times as long; file contents can be large.
pub fn wipe(bytes: &mut Vec<u8>) {
    let capacity = bytes.capacity();
    bytes.clear();
    bytes.resize(capacity, 0);
    zeroize::optimization_barrier(&bytes[..]);
    bytes.clear();
}

/// The encoded `FileDescriptorSet` of everything in [`v1`], for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
