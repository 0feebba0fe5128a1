//! Handles the container's output: its log, attached clients, masked values, and its termination message.

pub(crate) mod attach;
pub(crate) mod container_log;
mod log_file;
pub(crate) mod redaction;
pub(crate) mod termination_message;
