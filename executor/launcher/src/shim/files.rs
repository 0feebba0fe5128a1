//! Handles secret files: a helper writes and mounts them, and replaces them while the container runs.

pub(crate) mod helper;
pub(crate) mod inject;
pub(crate) mod sysctls;
pub(crate) mod update;
