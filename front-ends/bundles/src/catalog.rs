//! Reads file-based catalogs: packages with their bundles, channels and upgrade graph.
//!
//! ```text
//! files -> split into documents -> blobs (in parallel) -> Objects -> Catalog::build -> Catalog
//! ```
//! Rules C1 to C14 are in `docs/guides/catalogs.md`. Each rule has a test whose name begins with its number.

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
