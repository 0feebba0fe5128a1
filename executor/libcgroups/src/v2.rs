//! Provides the mount point of the version 2 hierarchy.

pub mod util {
    use std::io;
    use std::path::PathBuf;

    use crate::common::DEFAULT_CGROUP_ROOT;

    /// Returns the mount point of the version 2 hierarchy.
    ///
    /// # Errors
    /// Returns no error. libcontainer expects a result.
    pub fn get_unified_mount_point() -> io::Result<PathBuf> {
        Ok(PathBuf::from(DEFAULT_CGROUP_ROOT))
    }
}
