//! Tests of the real daemon, with real clients, and a launcher and shims that the tests control.

#![allow(clippy::unwrap_used)] // a failed step of the harness fails its test

mod connections;
mod harness;
mod interface;
mod lifecycle;
mod recovery;
mod rotation;
mod streams;
