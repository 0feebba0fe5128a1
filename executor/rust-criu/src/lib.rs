//! Replaces the crate of the same name for libcontainer (`[patch.crates-io]` in the workspace's `Cargo.toml`).
//!
//! libcontainer uses the crate only for checkpoints, which the launcher never requests. The original crate compiles a
//! protobuf library twice and a code generator for them. Here [`Criu::new`] returns an error, so that no other method
//! can be called (docs/adr/0067-libcontainer-makes-no-checkpoints.md).

use std::os::fd::RawFd;

/// Treatment of cgroups in a checkpoint.
#[derive(Clone, Debug)]
pub enum CgMode {}

/// Error of every checkpoint.
#[derive(Debug, thiserror::Error)]
#[error("checkpoints are not supported")]
pub struct CriuError;

/// A checkpoint. This type has no values.
pub enum Criu {}

/// Defines methods of [`Criu`] that cannot be called.
macro_rules! setters {
    ($($name:ident: $type:ty),* $(,)?) => {
        $(pub fn $name(&mut self, _: $type) { match *self {} })*
    };
}

impl Criu {
    /// # Errors
    /// Always returns [`CriuError`].
    pub fn new() -> Result<Self, CriuError> {
        Err(CriuError)
    }

    /// # Errors
    /// Returns no error, because this method cannot be called.
    pub fn get_criu_version(&mut self) -> Result<u32, CriuError> {
        match *self {}
    }

    /// # Errors
    /// Returns no error, because this method cannot be called.
    pub fn dump(&mut self) -> Result<(), CriuError> {
        match *self {}
    }

    pub fn set_external_mount(&mut self, _: String, _: String) {
        match *self {}
    }

    setters! {
        add_external: String,
        cgroups_mode: CgMode,
        set_ext_unix_sk: bool,
        set_file_locks: bool,
        set_images_dir_fd: RawFd,
        set_leave_running: bool,
        set_link_remap: bool,
        set_log_file: String,
        set_log_level: i32,
        set_manage_cgroups: bool,
        set_orphan_pts_master: bool,
        set_pid: i32,
        set_root: String,
        set_shell_job: bool,
        set_tcp_established: bool,
        set_work_dir_fd: RawFd,
    }
}

/// Returns the name of the namespace type unchanged.
pub fn criu_ns_to_key(namespace: &str) -> String {
    namespace.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_are_refused() {
        let error = Criu::new().err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some("checkpoints are not supported"));
    }
}
