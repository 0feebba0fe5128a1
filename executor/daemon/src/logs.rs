//! Containers' logs, which shims write and rotate, and their way outward.

pub mod reader;
pub(crate) mod sinks;
pub mod tail;
pub mod watch;
