//! Tests agent-cli as users run it, against a fake executord on a unix socket.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod commands;
mod fake;
mod interrupt;
mod local;
mod networks;
mod outputs;
mod program;
mod programs;
mod reconnect;
mod run;
mod schema;
