//! Containers' logs: files that shims write and rotate, read here for whoever asks.

pub mod reader;
pub mod tail;
pub mod watch;
