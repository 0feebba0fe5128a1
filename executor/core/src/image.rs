//! Images: their references, and the process settings in their configuration.
//!
//! The input is references from a caller and configurations from a registry or an archive, both untrusted. The output
//! is [`ImageReference`]s, [`Digest`]s and [`ImageDefaults`], each within limits, and the decisions of the operator's
//! [`ImagePolicy`] about them. Nothing here fetches, reads or stores anything: `executor_images` does.

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

/// Largest manifest, index or configuration, in bytes (the distribution specification's advice).
pub const DOCUMENT_MAX: u64 = 4 << 20;
