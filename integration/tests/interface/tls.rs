//! TCP with mutual TLS: who gets in, what a caller may call, what other clients see, and what stays in memory.

mod callers;
mod cli;
mod memory;
mod renewal;
mod revoked;
mod shares;
mod strangers;
