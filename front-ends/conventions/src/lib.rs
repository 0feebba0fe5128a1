//! Calls conventions: servers that decorate pod templates before the pods are created (VMware Tanzu's Cartographer
//! Conventions).
//!
//! The input is a pod template, the registrations in a configuration file, and image metadata. The output is the
//! decorated template with the changes of each convention, or all violations. executord does not support
//! conventions: front ends call them.
//!
//! ```text
//! config -> registration (selector, endpoint, grant)
//! template -> secrets (values hidden) -> decorate: for each convention, in order, until nothing changes
//!     images (pinned, SBOMs) -> context (request) -> transport -> context (response)
//!     -> applied (annotation) -> privileges (against the grants) -> change (the difference)
//! -> secrets (values put back) -> Decorated
//! ```
//!
//! Rules are numbered as in `docs/guides/conventions.md`. Each rule has a test whose name begins with its number.

#![forbid(unsafe_code)]

mod applied;
pub mod change;
pub mod config;
mod context;
mod conventions;
mod decorate;
mod endpoint;
mod files;
pub mod grant;
pub mod images;
pub mod intent;
mod labels;
mod privileges;
pub mod registration;
pub mod sbom;
pub mod secrets;
pub mod selector;
pub mod template;
pub mod transport;
pub mod violation;

pub use applied::APPLIED_CONVENTIONS;
pub use context::{Bom, ImageConfig};
pub use conventions::Conventions;
pub use decorate::{Decorated, Intent, ROUNDS_MAX, Step, decorate};
pub use endpoint::Endpoint;
