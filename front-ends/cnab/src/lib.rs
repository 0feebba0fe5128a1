//! Cloud Native Application Bundles (CNAB 1.2), lowered to what a container is run with.
//!
//! In go a bundle, parameters and credentials; out comes an [`invocation::Invocation`], and after the run a
//! [`claim::ClaimResult`]. What a container is, who runs it and how, is not known here. Only [`store`] touches files.
//!
//! ```text
//! bundle (archive) -> extension::check -> Action::new -> parameters::resolve -> credentials::check
//!        -> Claim::new -> invocation::lower -> (a container) -> outputs::settle -> ClaimResult -> store
//! ```
//!
//! Rules are numbered as in `docs/guides/cnab-rules.md`, and each has a test that is called after it.

#![forbid(unsafe_code)]

pub mod action;
pub mod archive;
pub mod bundle;
pub mod claim;
pub mod credentials;
pub mod definition;
pub mod dependencies;
pub mod digest;
pub mod docker;
pub mod extension;
pub mod id;
pub mod invocation;
pub mod names;
pub mod outputs;
pub mod parameter_sources;
pub mod parameters;
pub mod paths;
pub mod relocation;
mod schema;
pub mod secret;
pub mod sourced;
pub mod store;
pub mod violation;
pub mod write_only;
