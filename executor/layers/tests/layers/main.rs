//! Tests malicious archives, which are unpacked into a store next to files that must not change.
//!
//! The harness compares everything outside the tree before and after an attack. As a control for each attack, an
//! unpacker that trusts its input gets the same archive, and the harness must detect the change.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails; its helpers do not count as tests to the lint

mod content;
mod harness;
mod limits;
mod names;
mod overlay;
mod random;
mod store;
