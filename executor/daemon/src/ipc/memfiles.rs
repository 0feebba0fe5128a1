//! Creates memory files for the launcher and for shims: JSON documents, and payloads with secrets.

use std::io;

use executor_core::payload;
use executor_proto::v1::EnvironmentVariable;
use executor_sys::memfile::MemFile;
use serde::Serialize;
use zeroize::Zeroizing;

/// Writes a document into a memory file as JSON.
pub(crate) fn json(name: &str, document: &impl Serialize) -> io::Result<MemFile> {
    MemFile::new(name, &[&serde_json::to_vec(document)?])
}

/// Writes strings into a memory file, encoded as a payload.
pub(crate) fn strings(name: &str, strings: &[&[u8]]) -> io::Result<MemFile> {
    let (head, prefixes) = (payload::head(strings.len()), strings.iter().map(|string| payload::prefix(string.len())));
    let prefixes: Vec<[u8; 4]> = prefixes.collect();
    let parts = prefixes.iter().zip(strings).flat_map(|(prefix, string)| [&prefix[..], string]);
    MemFile::new(name, &std::iter::once(&head[..]).chain(parts).collect::<Vec<_>>())
}

/// A payload that is overwritten on drop. Its receiver also overwrites it, if the receiver is not killed before.
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
