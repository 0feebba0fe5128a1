//! What holds secrets, and what wipes them.
//!
//! - [`ZeroOnFree`]: the allocator of every process of ours that meets a secret.
//! - [`TagKey`]: tells whether two requests are the same without keeping either.
//! - [`redact`]: masks the values in what a container prints.
//! - [`volume`]: the tmpfs that a container's secret files live on, from its making to its receipt.
//!
//! Unsafe code is confined to the allocator, which cannot be written without.

mod allocator;
pub mod redact;
mod tag;
pub mod volume;

pub use allocator::ZeroOnFree;
pub use tag::{BadKey, TagKey};
