//! File-based catalogs: what bundles there are, in which channels, and what upgrades to what.
//!
//! ```text
//! files -> split into documents -> blobs (in parallel) -> Objects -> Catalog::build -> Catalog
//! ```
//! Rules C1 to C14 are those of `docs/guides/catalogs.md`, and each has a test that is called after it.

pub mod blob;
pub mod diff;
mod events;
pub mod files;
pub mod form;
pub mod load;
pub mod mermaid;
pub mod model;
mod patterns;
pub mod split;

pub use load::{LoadError, Objects, load};
pub use model::{Bundle, Catalog, Channel, Entry, Package};
