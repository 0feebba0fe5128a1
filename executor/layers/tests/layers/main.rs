//! Tests malicious archives, which are unpacked into a store next to files that must not change.
//!
//! The harness compares everything outside the tree before and after an attack. As a control for each attack, an
//! unpacker that trusts its input gets the same archive, and the harness must detect the change.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test; the lint does not treat helpers as tests

mod content;
mod harness;
mod limits;
mod names;
mod overlay;
mod random;
mod store;
