//! The end of a container: the rest of its output, and its declared outputs.

pub(crate) mod drain;
pub(crate) mod outputs;
