//! Handles memory and files that hold secrets, and wipes them.
//!
//! - [`ZeroOnFree`]: the allocator of every executor process that handles secrets.
//! - [`TagKey`]: computes keyed digests, which compare requests without storing them.
//! - [`scrub_stack`]: overwrites stack memory left by earlier calls.
//! - [`redact`]: masks secret values in a container's output.
//! - [`Token`]: lets a client read a container's secret inputs; [`TokenDigest`] verifies the token.
//! - [`volume`]: the tmpfs of a container's secret files, from its creation to the receipt of its wipe.
//!
//! The feature `residue-control` disables wiping and masking ([`CONTROL`]). One test uses such a build to prove that
//! the other tests would find residue.
//!
//! Unsafe code is confined to the allocator, which requires it.

#[cfg(all(feature = "residue-control", not(debug_assertions)))]
compile_error!("the feature residue-control disables wiping: use it for tests, in debug builds only");

/// True for a build that wipes neither freed memory nor files nor buffers (feature `residue-control`, debug builds
/// only). In such a build the search for residue must find residue.
pub const CONTROL: bool = cfg!(feature = "residue-control");

/// Version of the executor's programs. A build that wipes nothing reports this in its version.
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
