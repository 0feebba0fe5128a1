//! Tests secrets: their sources, their replacement, and their removal without residue.

#![allow(clippy::unwrap_used)] // a test that cannot continue fails; the lint does not count its helpers as tests

mod attacks;
mod audit;
mod bindings;
mod get_secrets;
mod identity;
mod redaction;
mod references;
mod residue;
mod rotation;
