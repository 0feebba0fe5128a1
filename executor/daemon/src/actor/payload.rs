//! Descriptors that executord passes to the launcher for a launch. If the launch fails, the secrets in them are
//! overwritten.

use std::sync::Arc;

use executor_sys::memfile::MemFile;
use executor_sys::seqpacket::Seqpacket;

use crate::model::container::link::ShimLink;

/// Launch payload: descriptors for the launcher, with this process's only copies of the container's secrets.
#[derive(Debug)]
pub(crate) struct LaunchPayload {
    /// This daemon's end of the connection to the shim.
    pub(crate) ours: Arc<ShimLink>,
    /// The shim's end of the connection.
    pub(crate) theirs: Seqpacket,
    /// Plan, as JSON.
    pub(crate) plan: MemFile,
    /// Program, arguments, environment.
    pub(crate) process: MemFile,
    pub(crate) files: MemFile,
}

impl LaunchPayload {
    /// Overwrites the secrets of a launch that no other process has received.
    pub(crate) fn wipe(&self) {
        wipe(&self.process);
        wipe(&self.files);
    }
}

/// Overwrites a memory file of secrets that no other process has received.
pub(super) fn wipe(file: &MemFile) {
    if let Err(error) = file.wipe() {
        tracing::error!(%error, "cannot wipe a memory file of a container that was not launched");
    }
}
