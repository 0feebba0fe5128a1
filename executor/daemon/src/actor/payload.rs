//! The descriptors that executord hands to the launcher for a launch. Their secrets are overwritten where nobody takes them over.

use std::sync::Arc;

use executor_sys::memfile::MemFile;
use executor_sys::seqpacket::Seqpacket;

use crate::model::container::link::ShimLink;

/// Payload of a launch: descriptors for the launcher, with the only copies of the container's secrets in this process.
#[derive(Debug)]
pub(crate) struct LaunchPayload {
    /// This daemon's end of the connection to the shim.
    pub(crate) ours: Arc<ShimLink>,
    /// The shim's end.
    pub(crate) theirs: Seqpacket,
    /// Plan, as JSON.
    pub(crate) plan: MemFile,
    /// Program, arguments, environment.
    pub(crate) process: MemFile,
    /// Contents of the files.
    pub(crate) files: MemFile,
}

impl LaunchPayload {
    /// Overwrites the secrets of a launch that nobody took over.
    pub(crate) fn wipe(&self) {
        wipe(&self.process);
        wipe(&self.files);
    }
}

/// Overwrites a file of secrets that nobody took over.
pub(super) fn wipe(file: &MemFile) {
    if let Err(error) = file.wipe() {
        tracing::error!(%error, "cannot wipe a memory file of a container that was not launched");
    }
}
