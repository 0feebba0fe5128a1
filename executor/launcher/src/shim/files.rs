//! Writes and mounts secret files through a helper, and replaces them while the container runs.

pub(crate) mod helper;
pub(crate) mod inject;
pub(crate) mod sysctls;
pub(crate) mod update;
