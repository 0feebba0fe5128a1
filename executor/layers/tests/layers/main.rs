//! What others may have packed, unpacked into a store beside things that nothing may touch.
//!
//! The harness looks at everything outside the tree before and after. Each attack comes with its control: an unpacker
//! that trusts what it reads is given the same archive, and the harness must see what it does.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails; its helpers do not count as tests to the lint

mod content;
mod harness;
mod limits;
mod names;
mod overlay;
mod random;
mod store;
