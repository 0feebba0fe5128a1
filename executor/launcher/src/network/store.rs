//! Records to take containers off their networks: STATE_DIR/networks/ID.json, root's alone.
//!
//! Beside the containers' own directories and not in them: a plugin that fails at a container's end must not keep the
//! container, and is tried again when that is long gone.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use executor_core::cni::Attachment;
use executor_core::ident::ContainerId;
use executor_sys::replace::Replacement;
use rustix::fs::{FlockOperation, flock};

use crate::files;
use crate::host::Host;

/// Largest file. A configuration and a result, which have less.
const BYTES_MAX: u64 = 8 << 20;
const ENDING: &str = ".json";

fn dir(host: &Host) -> PathBuf {
    host.state_dir.join("networks")
}

fn path(host: &Host, id: &ContainerId) -> PathBuf {
    dir(host).join(format!("{id}{ENDING}"))
}

/// Makes the directory.
pub(super) fn make_dir(host: &Host) -> io::Result<()> {
    files::ensure_dir(&dir(host), 0o700)
}

/// Looks whether a port that is asked for is another container's already. Until the lock that comes back is let go,
/// nobody else looks.
///
/// # Errors
/// The disk.
pub(super) fn look_at_ports(host: &Host, own: &Attachment) -> io::Result<Result<File, (String, ContainerId)>> {
    let lock = File::open(dir(host))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    for id in ids(host).into_iter().filter(|id| *id != own.id) {
        // One that cannot be read is about to go.
        let other = read(host, &id).ok().flatten();
        if let Some(port) = other.and_then(|other| own.asked.published_by_both(&other.asked)) {
            return Ok(Err((port, id)));
        }
    }
    Ok(Ok(lock))
}

/// Writes it for the first time, so that it survives the machine, as what plugins keep on disk may.
pub(super) fn write_first(host: &Host, attachment: &Attachment) -> io::Result<()> {
    Replacement::from_path(&path(host, &attachment.id)).durable().write(&serde_json::to_vec(attachment)?).map(drop)
}

/// Writes it, replacing what was there.
pub(super) fn write(host: &Host, attachment: &Attachment) -> io::Result<()> {
    Replacement::from_path(&path(host, &attachment.id)).write(&serde_json::to_vec(attachment)?).map(drop)
}

/// Reads it; nothing where the container is on no network.
pub(super) fn read(host: &Host, id: &ContainerId) -> io::Result<Option<Attachment>> {
    match files::read_json(&path(host, id), BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        attachment => attachment.map(Some),
    }
}

/// Removes it.
pub(super) fn remove(host: &Host, id: &ContainerId) -> io::Result<()> {
    fs::remove_file(path(host, id))
}

/// Containers that there is one of.
pub(super) fn ids(host: &Host) -> Vec<ContainerId> {
    let entries = fs::read_dir(dir(host)).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.strip_suffix(ENDING)?.parse().ok()).collect()
}
