//! Conventions: servers that decorate pod templates before they are played (VMware Tanzu's Cartographer Conventions).
//!
//! In go a pod template, the registrations of a configuration file, and what images say of themselves; out come the decorated
//! template and each convention's changes, or every violation at once. The daemon knows nothing of it.
//!
//! ```text
//! config -> registration (selector, endpoint, grant)
//! template -> secrets (values hidden) -> decorate: for each convention, in order, until nothing changes
//!     images (pinned, SBOMs) -> context (request) -> transport -> context (answer)
//!     -> applied (annotation) -> privileges (against the grants) -> change (the difference)
//! -> secrets (values put back) -> Decorated
//! ```
//!
//! Rules are numbered as in `docs/guides/conventions.md`, and each has a test that is called after it.

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
