//! Records for detaching containers from their networks: STATE_DIR/networks/ID.json, for root only.
//!
//! They lie next to the containers' directories and not in them: a plugin that fails at a container's end must not keep
//! the container, and is called again when the container is long gone.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use executor_core::cni::Attachment;
use executor_core::ident::ContainerId;
use executor_sys::replace::Replacement;
use rustix::fs::{FlockOperation, flock};

use crate::files;
use crate::host::Host;

/// Largest file in bytes; a configuration and a result are smaller.
const BYTES_MAX: u64 = 8 << 20;
const ENDING: &str = ".json";

fn dir(host: &Host) -> PathBuf {
    host.state_dir.join("networks")
}

fn path(host: &Host, id: &ContainerId) -> PathBuf {
    dir(host).join(format!("{id}{ENDING}"))
}

pub(super) fn make_dir(host: &Host) -> io::Result<()> {
    files::ensure_dir(&dir(host), 0o700)
}

/// Checks whether a requested port already belongs to another container. Returns a lock that excludes other checks
/// until it is dropped.
///
/// # Errors
/// Returns the error of the disk.
pub(super) fn check_ports(host: &Host, own: &Attachment) -> io::Result<Result<File, (String, ContainerId)>> {
    let lock = File::open(dir(host))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    for id in ids(host).into_iter().filter(|id| *id != own.id) {
        // A record that cannot be read is about to be removed.
        let other = read(host, &id).ok().flatten();
        if let Some(port) = other.and_then(|other| own.asked.published_by_both(&other.asked)) {
            return Ok(Err((port, id)));
        }
    }
    Ok(Ok(lock))
}

/// Writes a record for the first time and syncs it, because plugins' own data may survive a reboot as well.
pub(super) fn write_first(host: &Host, attachment: &Attachment) -> io::Result<()> {
    Replacement::from_path(&path(host, &attachment.id)).durable().write(&serde_json::to_vec(attachment)?).map(drop)
}

/// Writes a record, replacing the previous one.
pub(super) fn write(host: &Host, attachment: &Attachment) -> io::Result<()> {
    Replacement::from_path(&path(host, &attachment.id)).write(&serde_json::to_vec(attachment)?).map(drop)
}

/// Reads a record; `None` if the container is on no network.
pub(super) fn read(host: &Host, id: &ContainerId) -> io::Result<Option<Attachment>> {
    match files::read_json(&path(host, id), BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        attachment => attachment.map(Some),
    }
}

pub(super) fn remove(host: &Host, id: &ContainerId) -> io::Result<()> {
    fs::remove_file(path(host, id))
}

/// Returns the containers that have a record.
pub(super) fn ids(host: &Host) -> Vec<ContainerId> {
    let entries = fs::read_dir(dir(host)).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.strip_suffix(ENDING)?.parse().ok()).collect()
}
