//! Parses image references, digests and image configurations, and applies the operator's image policy.
//!
//! The input is references from a caller and configurations from a registry or an archive, both untrusted. The output
//! is [`ImageReference`]s, [`Digest`]s and [`ImageDefaults`], each within limits, and the decisions of the operator's
//! [`ImagePolicy`]. This module performs no I/O: `executor_images` fetches, reads and stores images.

mod defaults;
mod digest;
mod policy;
mod reference;
mod signal;

pub use defaults::{Command, ConfigError, ImageDefaults, NoCommand, read_configuration};
pub use digest::{Algorithm, BadDigest, DiffId, Digest};
pub use policy::{BadPattern, BadRules, Forbidden, ImagePolicy, ImageRules, RepositoryPattern, repository_patterns};
pub use reference::{BadReference, Fault, ImageReference, Repository, Selector};
pub use signal::parse_signal;

pub use crate::limits::LAYERS_MAX;

/// Maximum size of a manifest, index or configuration, in bytes (recommended by the distribution specification).
pub const DOCUMENT_MAX: u64 = 4 << 20;
