//! From a plan to a created container.

pub(crate) mod etc_files;
pub(crate) mod host_options;
pub(crate) mod prepare;
