//! Unpacks image layers into directories in overlayfs format, and stores them by the digest of their content.
//!
//! The input is an untrusted blob that another process fetched. The output is a directory in the store; after an error,
//! nothing remains in the store. The blob is not trusted:
//!
//! - Limits are enforced while the blob is read ([`Limits`], [`stream`], and the crate `executor-tar`): bytes, entries,
//!   ratio, lengths.
//! - Every name in the blob is opened beneath the layer's own root, by openat2 without following symbolic links
//!   ([`tree`]).
//! - The result is moved into the store by an atomic rename, and only if its SHA-256 is the requested diffID
//!   ([`store`]).
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
