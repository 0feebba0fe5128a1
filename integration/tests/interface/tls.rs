//! TCP with mutual TLS: accepted clients, permitted calls, other clients, and residue in memory.

mod callers;
mod cli;
mod memory;
mod renewal;
mod revoked;
mod shares;
mod strangers;
