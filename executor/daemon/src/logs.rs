//! Containers' logs, which shims write and rotate, and their way outward.

pub(crate) mod outward;
pub mod reader;
pub mod tail;
pub mod watch;
