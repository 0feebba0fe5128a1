//! Secrets: their sources, their replacement, and their removal without residue.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails; its helpers do not count as tests to the lint

mod attacks;
mod audit;
mod bindings;
mod get_secrets;
mod identity;
mod redaction;
mod references;
mod residue;
mod rotation;
