//! Stores records for detaching containers from their networks: STATE_DIR/networks/ID.json, readable only by root.
//!
//! Records are not in the containers' directories, because a container must be removable even if a plugin fails after
//! the container's exit. The plugin is called again after the container is removed.
//!
//! For each published port there is an empty file next to the record: ID.PORT-PROTOCOL. File names show whether a port
//! is free, so that only few records must be read.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use executor_core::cni::{Addresses, Attachment, Capabilities};
use executor_core::ident::ContainerId;
use executor_core::plan::{Protocol, PublishedPort};
use executor_sys::replace::{PARTIAL, Replacement};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::attachment::BridgeAttachment;
use crate::files;
use crate::host::Host;

/// Maximum size of a record file, in bytes.
const BYTES_MAX: u64 = 8 << 20;
const ENDING: &str = ".json";

/// A container that is attached to a network, or whose attachment has begun.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Stored {
    /// Attached to a built-in bridge network.
    Bridge(BridgeAttachment),
    /// Attached to a CNI network.
    Cni(Attachment),
}

impl Stored {
    /// Returns the name of the network.
    pub(super) fn network(&self) -> &str {
        match self {
            Self::Bridge(attachment) => &attachment.network,
            Self::Cni(attachment) => &attachment.network.name,
        }
    }

    /// Returns the addresses and name servers of the container.
    ///
    /// # Errors
    /// Returns an error if the result of the plugins is invalid.
    pub(super) fn addresses(&self) -> Result<Addresses, String> {
        match self {
            Self::Bridge(attachment) => Ok(attachment.addresses()),
            Self::Cni(attachment) => Addresses::parse(attachment.result.as_ref().unwrap_or(&Value::Null)),
        }
    }

    /// Returns the published ports and name servers in the format for CNI plugins.
    pub(super) fn asked(&self) -> &Capabilities {
        match self {
            Self::Bridge(attachment) => &attachment.asked,
            Self::Cni(attachment) => &attachment.asked,
        }
    }
}

/// Durability of a written record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Durability {
    Synced,
    Unsynced,
}

/// Returns the directory of the records.
pub(super) fn dir(host: &Host) -> PathBuf {
    host.state_dir.join("networks")
}

fn path(host: &Host, id: &str) -> PathBuf {
    dir(host).join(format!("{id}{ENDING}"))
}

pub(super) fn make_dir(host: &Host) -> io::Result<()> {
    files::ensure_dir(&dir(host), 0o700)
}

/// Locks the network data. The lock is held until the file is dropped.
///
/// # Errors
/// Returns an error if a file operation fails.
pub(super) fn lock(host: &Host) -> io::Result<File> {
    let lock = File::open(dir(host))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    Ok(lock)
}

/// Checks whether another container has one of the requested ports. Returns a lock that excludes other checks until it
/// is dropped, or the port and the id of the other container.
///
/// # Errors
/// Returns an error if a file operation fails.
pub(super) fn check_ports(host: &Host, own: &str, asked: &Capabilities) -> io::Result<Result<File, (String, String)>> {
    let lock = lock(host)?;
    for id in publishers(host, asked).into_iter().filter(|id| id != own) {
        // A record that cannot be read is about to be removed.
        let other = read(host, &id).ok().flatten();
        if let Some(port) = other.and_then(|other| asked.published_by_both(other.asked())) {
            return Ok(Err((port, id)));
        }
    }
    Ok(Ok(lock))
}

/// Returns the ids of the containers with a file for one of these ports.
fn publishers(host: &Host, asked: &Capabilities) -> BTreeSet<String> {
    let endings: Vec<String> = asked.published().map(|port| port_ending(&port)).collect();
    let publisher = |name: String| endings.iter().find_map(|ending| Some(name.strip_suffix(ending)?.to_owned()));
    file_names(host).filter_map(publisher).collect()
}

/// Returns the suffix of the file names for a port.
fn port_ending(port: &PublishedPort) -> String {
    format!(".{}-{}", port.host_port, port.protocol.name())
}

fn port_paths(host: &Host, id: &str, asked: &Capabilities) -> Vec<PathBuf> {
    asked.published().map(|port| dir(host).join(format!("{id}{}", port_ending(&port)))).collect()
}

/// Writes a record, and replaces the previous record.
pub(super) fn write(host: &Host, id: &str, stored: &Stored, durability: Durability) -> io::Result<()> {
    for path in port_paths(host, id, stored.asked()) {
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    }
    let path = path(host, id);
    let mut replacement = Replacement::from_path(&path);
    if durability == Durability::Synced {
        replacement = replacement.durable();
    }
    replacement.write(&serde_json::to_vec(stored)?).map(drop)
}

/// Reads a record. Returns `None` if the container is on no network.
pub(super) fn read(host: &Host, id: &str) -> io::Result<Option<Stored>> {
    match files::read_json(&path(host, id), BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        stored => stored.map(Some),
    }
}

/// Removes the record of a container. `asked` must contain the container's published ports.
pub(super) fn remove(host: &Host, id: &str, asked: &Capabilities) -> io::Result<()> {
    fs::remove_file(path(host, id))?;
    remove_partial(host, id)?;
    free_ports(host, id, asked)
}

/// Removes a partly written record of a killed process.
pub(super) fn remove_partial(host: &Host, id: &str) -> io::Result<()> {
    files::ignore_not_found(fs::remove_file(dir(host).join(format!("{id}{ENDING}{PARTIAL}"))))
}

/// Removes the files that a killed process created for a container before its record was complete: the partly written
/// record, and the files for its published ports.
pub(super) fn remove_unrecorded(host: &Host, id: &str) -> io::Result<()> {
    remove_partial(host, id)?;
    let is_own = |name: &String| name.rsplit_once('.').is_some_and(|(owner, ending)| owner == id && is_port(ending));
    file_names(host).filter(is_own).try_for_each(|name| files::ignore_not_found(fs::remove_file(dir(host).join(name))))
}

/// Returns true if the suffix of a file name, without its dot, names a port.
fn is_port(ending: &str) -> bool {
    let (port, protocol) = ending.split_once('-').unwrap_or_default();
    port.parse::<u16>().is_ok() && Protocol::from_name(protocol).is_some()
}

/// Removes the files that name the published ports of a container.
pub(super) fn free_ports(host: &Host, id: &str, asked: &Capabilities) -> io::Result<()> {
    for path in port_paths(host, id, asked) {
        files::ignore_not_found(fs::remove_file(path))?;
    }
    Ok(())
}

/// Removes leftovers of killed processes: port files and partly written records without a complete record. Skips the
/// containers in `living`, because their shims may be writing records.
pub(super) fn sweep(host: &Host, living: &BTreeSet<ContainerId>) {
    let Ok(_lock) = lock(host) else { return }; // port files are created before the record
    let records: BTreeSet<String> = names(host).into_iter().collect();
    for name in file_names(host) {
        let partial = name.strip_suffix(PARTIAL).and_then(|name| name.strip_suffix(ENDING));
        if let Some(id) = partial
            && !living.iter().any(|living| living.as_str() == id)
        {
            let _ = remove_partial(host, id); // the next sweep tries again
        }
        if let Some((id, ending)) = name.rsplit_once('.')
            && is_port(ending)
            && !records.contains(id)
        {
            let _ = fs::remove_file(dir(host).join(&name)); // the next sweep tries again
        }
    }
}

/// Returns the ids of the containers that have a record.
pub(super) fn ids(host: &Host) -> Vec<ContainerId> {
    names(host).into_iter().filter_map(|name| name.parse().ok()).collect()
}

/// Returns the names of all records: ids of containers, and record names of warm containers.
pub(super) fn names(host: &Host) -> Vec<String> {
    file_names(host).filter_map(|name| Some(name.strip_suffix(ENDING)?.to_owned())).collect()
}

fn file_names(host: &Host) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(dir(host)).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}
