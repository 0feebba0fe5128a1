//! Creates a container from a plan.

pub(crate) mod etc_files;
pub(crate) mod host_options;
pub(crate) mod prepare;
