//! The daemon as it ships, between real clients and a launcher and shims of the tests' own making.

#![allow(clippy::unwrap_used)] // a step of the harness that fails fails its test

mod connections;
mod harness;
mod interface;
mod lifecycle;
mod recovery;
mod rotation;
mod streams;
