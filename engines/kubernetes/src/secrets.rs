//! Secrets by reference in annotations of pods: rules C51 and C55.
//!
//! ```text
//!  annotation PREFIX/CONTAINER ── read ──> record of the sandbox (names only) ── lower ──> files and variables `from`
//!                                                 └── check_rules: [[cri.secrets]]          a provider of executord
//! ```
//! The values are fetched by executord and never reach executor-cri.

mod annotation;
mod input;

pub(crate) use annotation::read;
pub(crate) use input::{ContainerSecrets, check_rules};
