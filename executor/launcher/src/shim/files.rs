//! Secret files: written and mounted by a helper, and replaced while the container runs.

pub(crate) mod helper;
pub(crate) mod inject;
pub(crate) mod sysctls;
pub(crate) mod update;
