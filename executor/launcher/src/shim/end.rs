//! Handles the exit of a container: delivers the last output and captures the declared outputs.

pub(crate) mod drain;
pub(crate) mod outputs;
