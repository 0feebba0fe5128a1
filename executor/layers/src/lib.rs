//! Image layers: unpacked into directories in overlayfs' form, and stored by the digest of their content.
//!
//! Input: an untrusted blob that another process fetched; output: a directory in the store, or an error and no trace.
//! The blob is not trusted:
//!
//! - it is read within [`Limits`] ([`stream`], and the crate `executor-tar`): bytes, entries, ratio, lengths;
//! - every name in it is opened beneath the layer's own root, with openat2 and no symbolic link ([`tree`]);
//! - the result becomes a layer of the store only if its SHA-256 is the requested diffID, atomically, by a rename ([`store`]).
//!
//! The conversion from archive to tree follows the image specification (`layer.md`), and umoci where the specification
//! is silent. The crate starts no process and drops no privilege: the launcher calls it in a confined process.

#![forbid(unsafe_code)]

mod error;
mod limits;
mod skipped_devices;
pub mod store;
pub mod stream;
pub mod tree;
mod unpack;

pub use error::UnpackError;
pub use executor_core::image::DiffId;
pub use limits::Limits;
pub use skipped_devices::SkippedDevices;
pub use store::Store;
pub use unpack::{PreparedUnpack, Request, apply};
