//! Reads tar archives entry by entry: layers of images, archives of images, downloads, copies, and bundles.
//!
//! Input: the bytes of an untrusted archive; output: entries whose names, numbers and lengths are within [`Limits`],
//! and the pieces of their contents. This crate looks up no path and creates no file: the caller decides which entries
//! are allowed, and where they go.
//!
//! The reader accepts what Go's `archive/tar` accepts, which writes most layers: v7, ustar, GNU with its long names,
//! base-256 numbers and sparse files, pax with its records and its three forms of sparse files. The crate `tar` is not
//! sufficient for reading. In that crate, records end at the first newline, so a `security.capability` that contains a
//! byte 10 is refused or lost; long names and records are limited only by memory; sparse files of pax and negative
//! times are not supported. Archives are written with the crate `tar`.

#![forbid(unsafe_code)]

mod entry;
mod error;
mod header;
mod limits;
mod pax;
mod reader;
mod sparse;

pub use entry::{Entry, Kind, Time, Xattrs, components};
pub use error::TarError;
pub use header::is_tar;
pub use limits::{FREE, Limits, RATIO_MAX};
pub use reader::{Content, Reader};
