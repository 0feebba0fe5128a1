//! Secrets by reference in annotations and volumes of pods: rules C51 to C55.
//!
//! ```text
//!  annotation PREFIX/CONTAINER ── read ──> record of the sandbox (names only) ──┐
//!                                                 └── check_rules               ├── lower ──> files and variables `from`
//!  items of an inline volume ── VolumeSecrets ──> record of the volume ─────────┘             a provider of executord
//!  tokens of the pod's service account ── PodToken ──> memory (no record) ── add_token ──> `provider_tokens`
//! ```
//! The values are fetched by executord and never reach executor-cri.

mod annotation;
mod input;
mod token;
mod volume;

pub(crate) use annotation::read;
pub(crate) use input::{ContainerSecrets, RequestSecrets, check_rules};
pub(crate) use token::PodToken;
pub(crate) use volume::VolumeSecrets;
