//! Layers of images: unpacked into directories as overlayfs wants them, and kept by the digest of what is in them.
//!
//! In goes a blob that somebody else fetched and that may hold anything; out comes a directory in the store, or a
//! refusal and nothing. Three things are done with no trust in the blob:
//!
//! - it is read within [`Limits`] ([`stream`], [`archive`]): bytes, entries, ratio, lengths;
//! - every name in it is opened beneath the layer's own root, with openat2 and no symbolic link ([`tree`]);
//! - what came out of it is one of the store's layers only if its SHA-256 is the diffID that was asked for, and it is
//!   that from one moment to the next, by a rename ([`store`]).
//!
//! How an archive becomes a tree follows the image specification (`layer.md`), and where that says nothing, umoci. The
//! crate makes no process and drops no privilege: the launcher calls it in a process that it has confined.

#![forbid(unsafe_code)]

pub mod archive;
mod error;
mod left_out;
mod limits;
pub mod store;
pub mod stream;
pub mod tree;
mod unpack;

pub use error::UnpackError;
pub use executor_core::image::DiffId;
pub use left_out::LeftOut;
pub use limits::Limits;
pub use store::Store;
pub use unpack::{Prepared, Request, apply};
