//! Validates Cloud Native Application Bundles (CNAB 1.2), and lowers (converts) their actions to the input of a
//! container run.
//!
//! The input is a bundle, parameters and credentials. The output is an [`invocation::Invocation`] and, after the run, a
//! [`claim::ClaimResult`]. This crate does not run containers. Only [`store`] accesses files.
//!
//! ```text
//! bundle (archive) -> extension::check -> Action::new -> parameters::resolve -> credentials::check
//!        -> Claim::new -> invocation::lower -> (a container) -> outputs::settle -> ClaimResult -> store
//! ```
//!
//! Rules are numbered as in `docs/guides/cnab-rules.md`. Each rule has a test whose name begins with its number.

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
