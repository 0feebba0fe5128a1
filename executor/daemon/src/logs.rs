//! Containers' logs, which shims write and rotate.

pub mod reader;
pub mod tail;
pub mod watch;
