//! Reads container logs, which shims write and rotate, and sends them to log sinks.

pub mod reader;
pub(crate) mod sinks;
pub mod tail;
pub mod watch;
