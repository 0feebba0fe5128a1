//! TCP with mutual TLS: who gets in, what a caller may call, what other clients see, and what stays in memory.

#![allow(clippy::unwrap_used)] // where a test cannot go on, it fails

mod callers;
mod cli;
mod memory;
mod renewal;
mod revoked;
mod shares;
mod strangers;
