//! The executor's public interface: the messages and the gRPC service of `executor.v1`, for the daemon
//! and for its clients.
//!
//! What goes in: the `.proto` files under `executor/v1`. What comes out: generated types, the service's
//! client and server, and the descriptor set that gRPC reflection answers with. Messages that can carry a
//! secret have no derived `Debug`; see [`v1`]'s hand-written ones, which print names and sizes.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod actions;
mod redact;

/// Version 1 of the interface.
#[allow(missing_docs, unused_qualifications, clippy::all, clippy::unwrap_used, clippy::map_unwrap_or)] // generated
pub mod v1 {
    tonic::include_proto!("executor.v1");
}

/// The encoded `FileDescriptorSet` of everything in [`v1`], for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
