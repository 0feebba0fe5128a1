//! Tests the crate with correct and malicious registries and archives.

#![allow(clippy::unwrap_used)] // a failed step of the harness fails the test

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
