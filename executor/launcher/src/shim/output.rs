//! The container's output: its log, the clients that are attached to it, masked values, its termination message.

pub(crate) mod attach;
pub(crate) mod container_log;
pub(crate) mod redaction;
pub(crate) mod termination_message;
