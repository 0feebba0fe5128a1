//! The crate against registries and archives that are right, and against ones that lie.

#![allow(clippy::unwrap_used)] // a step of the harness that fails fails its test

mod auth;
mod fake;
mod import;
mod lies;
mod mirrors;
mod policy;
mod pull;
mod resume;
mod shelf;
mod signed;
mod store;
mod tls;
