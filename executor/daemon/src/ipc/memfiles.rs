//! Memory files for the launcher and for shims: JSON documents, and payloads that are wiped.

use std::io;

use executor_proto::v1::EnvironmentVariable;
use executor_sys::memfile::MemFile;
use serde::Serialize;
use zeroize::Zeroizing;

/// Writes a document into a memory file as JSON.
pub(crate) fn json(name: &str, document: &impl Serialize) -> io::Result<MemFile> {
    MemFile::new(name, &[&serde_json::to_vec(document)?])
}

/// A payload that is overwritten on drop. The receiver also overwrites the payload, unless the receiver is killed.
#[derive(Debug)]
pub(crate) struct WipedPayload(pub(crate) MemFile);

impl Drop for WipedPayload {
    fn drop(&mut self) {
        if let Err(error) = self.0.wipe() {
            tracing::error!(%error, "cannot wipe a memory file with secrets");
        }
    }
}

/// Returns `NAME=VALUE` of a variable, in one allocation of its final size.
pub(crate) fn environment_string(variable: &EnvironmentVariable) -> Zeroizing<Vec<u8>> {
    Zeroizing::new([variable.name.as_bytes(), b"=", variable.content()].concat())
}
