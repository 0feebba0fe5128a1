//! Lowers (converts) Kubernetes objects to run requests for executord, to run them on one host without an API server.
//!
//! ```text
//! files -> [`object::read`]: located objects   -> [`object::Objects`]: workloads with their pod templates, which a caller may change
//!       -> [`lower::lower`]: a [`plan::Plan`] of pods, each with the requests of its containers in the order of their start
//! ```
//!
//! This crate uses no files, clocks or connections. All violations are reported together, with file, document, object
//! and path. Messages contain no values of Secrets. Rules are numbered as in `docs/guides/kube-rules.md` (`P17`). Each
//! rule has a test whose name begins with its number.

#![forbid(unsafe_code)]

pub mod config;
pub mod docker;
mod environment;
mod fields;
pub mod job;
mod located;
pub mod lower;
mod names;
pub mod object;
pub mod options;
pub mod plan;
pub mod report;
mod weight;
pub mod workload;

pub use executor_yaml as yaml;
pub use k8s_openapi;
