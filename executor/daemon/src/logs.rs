//! Container logs, which shims write and rotate, and the log sinks.

pub mod reader;
pub(crate) mod sinks;
pub mod tail;
pub mod watch;
