//! Tests TCP with mutual TLS: accepted clients, permitted calls, rejected clients, and residue in memory.

mod callers;
mod cli;
mod memory;
mod renewal;
mod revoked;
mod shares;
mod strangers;
