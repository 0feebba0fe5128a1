//! Returns the secret inputs to a client that has the container's runtime token.
//!
//! The input is the digest of the token that the client presented to the daemon. The output is a memory file with the
//! values. The shim reads the values directly from the volume, and compares only digests of tokens. A compromised
//! daemon gets no secrets without a token that a container has passed to it.

use crate::errors::failed;
use std::io;

use executor_core::disclosure::Manifest;
use executor_core::payload::{self, Writer};
use executor_core::plan::Layout;
use executor_core::protocol::{ReadSecrets, Reason, Refused};
use executor_core::record::ContainerRecord;
use executor_secrets::TokenDigest;
use executor_secrets::volume::{Stored, Volume};
use executor_sys::memfile::MemFile;

/// Returns the container's current inputs, if the token is valid. Files are returned in their current generation. For
/// files that the process may change, the initial contents are returned.
pub(crate) fn answer(
    request: &ReadSecrets,
    token: Option<&TokenDigest>,
    record: &ContainerRecord,
    volume: Option<&Volume>,
) -> Result<MemFile, Refused> {
    let presented = TokenDigest::from_bytes(&request.token_digest);
    // The comparison of two digests takes constant time.
    let (Some(volume), true) = (volume, token.is_some() && presented.as_ref() == token) else {
        return Err(Refused::new(Reason::Denied, "this is not the container's runtime token"));
    };
    disclose(record, volume).map_err(|error| failed("cannot read the secret inputs", &error))
}

fn disclose(record: &ContainerRecord, volume: &Volume) -> io::Result<MemFile> {
    let manifest = Manifest::from_plan(&record.plan);
    let json = serde_json::to_vec(&manifest)?;
    let mounts = record.prepared.as_ref().map(|prepared| prepared.mounts.as_slice()).unwrap_or_default();
    let inputs = (manifest.inputs() > 0).then(|| volume.inputs()).transpose()?;
    let file = |index| match record.plan.layout() {
        layout @ Layout::Generations => volume.current(mounts, index, layout),
        Layout::Writable => volume.kept_file(index),
    };
    let files: Vec<Stored> = (0..manifest.files.len()).map(file).collect::<io::Result<_>>()?;
    let length = payload::encoded_len(std::iter::once(&json[..]))
        + inputs.as_ref().map_or(0, Stored::len)
        + files.iter().map(|file| 4 + file.len()).sum::<usize>();
    let mut answer = MemFile::create("executor-secrets", length)?;
    let mut written = Ok(());
    answer.fill(|bytes| {
        let mut writer = Writer::new(bytes, 1 + manifest.values());
        writer.string(json.len()).copy_from_slice(&json);
        written = write(&mut writer, inputs, files).map(|()| writer.finish());
    })?;
    match written {
        Ok(()) => Ok(answer),
        Err(error) => {
            answer.wipe()?;
            Err(error)
        }
    }
}

fn write(writer: &mut Writer<'_>, inputs: Option<Stored>, files: Vec<Stored>) -> io::Result<()> {
    if let Some(inputs) = inputs {
        let place = writer.encoded(inputs.len());
        inputs.read_into(place)?;
    }
    for file in files {
        let place = writer.string(file.len());
        file.read_into(place)?;
    }
    Ok(())
}
