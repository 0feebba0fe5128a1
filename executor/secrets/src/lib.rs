//! Memory and files that hold secrets, and their wiping.
//!
//! - [`ZeroOnFree`]: the allocator of every process of ours that meets a secret.
//! - [`TagKey`]: tells whether two requests are the same without keeping either.
//! - [`scrub_stack`]: overwrites what calls left behind on the stack.
//! - [`redact`]: masks the values in what a container prints.
//! - [`Token`]: the key to a container's own secret inputs, and [`TokenDigest`], which judges it.
//! - [`volume`]: the tmpfs that a container's secret files live on, from its making to its receipt.
//!
//! The feature `residue-control` makes all of them do nothing ([`CONTROL`]), for the one test that shows that the others
//! would notice.
//!
//! Unsafe code is confined to the allocator, which cannot be written without.

#[cfg(all(feature = "residue-control", not(debug_assertions)))]
compile_error!("residue-control wipes nothing: it is for tests, in debug builds alone");

/// True for a build that wipes nothing: neither freed memory nor files nor buffers. The search for residue must find
/// some in it (feature `residue-control`, debug builds only).
pub const CONTROL: bool = cfg!(feature = "residue-control");

/// The version of our programs. A build that wipes nothing says so.
pub const VERSION: &str = if CONTROL {
    concat!(env!("CARGO_PKG_VERSION"), " (RESIDUE CONTROL: WIPES NO SECRET, FOR TESTS ONLY)")
} else {
    env!("CARGO_PKG_VERSION")
};

mod allocator;
pub mod redact;
mod stack;
mod tag;
mod token;
pub mod volume;

pub use allocator::ZeroOnFree;
pub use stack::scrub_stack;
pub use tag::{BadKey, TagKey};
pub use token::{Token, TokenDigest};
