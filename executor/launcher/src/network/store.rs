//! Records for detaching containers from their networks: STATE_DIR/networks/ID.json, for root only.
//!
//! They lie next to the containers' directories and not in them: a plugin that fails at a container's end must not keep
//! the container, and is called again when the container is long gone.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use executor_core::cni::{Addresses, Attachment, Capabilities};
use executor_core::ident::ContainerId;
use executor_sys::replace::Replacement;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::attachment::BridgeAttachment;
use crate::files;
use crate::host::Host;

/// Largest file in bytes; a configuration and a result are smaller.
const BYTES_MAX: u64 = 8 << 20;
const ENDING: &str = ".json";

/// A container that is, or may be, attached to a network.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Stored {
    /// To a built-in bridge network.
    Bridge(BridgeAttachment),
    /// To a network of CNI plugins.
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
    /// Returns a description of the fault in the plugins' result.
    pub(super) fn addresses(&self) -> Result<Addresses, String> {
        match self {
            Self::Bridge(attachment) => Ok(attachment.addresses()),
            Self::Cni(attachment) => Addresses::parse(attachment.result.as_ref().unwrap_or(&Value::Null)),
        }
    }

    /// Returns the published ports and name servers, as CNI plugins get them.
    pub(super) fn asked(&self) -> &Capabilities {
        match self {
            Self::Bridge(attachment) => &attachment.asked,
            Self::Cni(attachment) => &attachment.asked,
        }
    }
}

/// Durability of a record.
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

/// Returns a lock on the network data, held until it is dropped.
///
/// # Errors
/// Returns the error of the disk.
pub(super) fn lock(host: &Host) -> io::Result<File> {
    let lock = File::open(dir(host))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    Ok(lock)
}

/// Checks whether a requested port already belongs to another container. Returns a lock that excludes other checks
/// until it is dropped.
///
/// # Errors
/// Returns the error of the disk.
pub(super) fn check_ports(host: &Host, own: &str, asked: &Capabilities) -> io::Result<Result<File, (String, String)>> {
    let lock = lock(host)?;
    for id in names(host).into_iter().filter(|id| id != own) {
        // A record that cannot be read is about to be removed.
        let other = read(host, &id).ok().flatten();
        if let Some(port) = other.and_then(|other| asked.published_by_both(other.asked())) {
            return Ok(Err((port, id)));
        }
    }
    Ok(Ok(lock))
}

/// Writes a record, replacing the previous one.
pub(super) fn write(host: &Host, id: &str, stored: &Stored, durability: Durability) -> io::Result<()> {
    let path = path(host, id);
    let mut replacement = Replacement::from_path(&path);
    if durability == Durability::Synced {
        replacement = replacement.durable();
    }
    replacement.write(&serde_json::to_vec(stored)?).map(drop)
}

/// Reads a record; `None` if the container is on no network.
pub(super) fn read(host: &Host, id: &str) -> io::Result<Option<Stored>> {
    match files::read_json(&path(host, id), BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        stored => stored.map(Some),
    }
}

pub(super) fn remove(host: &Host, id: &str) -> io::Result<()> {
    fs::remove_file(path(host, id))
}

/// Returns the ids of the containers that have a record.
pub(super) fn ids(host: &Host) -> Vec<ContainerId> {
    names(host).into_iter().filter_map(|name| name.parse().ok()).collect()
}

/// Returns the ids of the containers, and the names of the warm ones, that have a record.
pub(super) fn names(host: &Host) -> Vec<String> {
    let entries = fs::read_dir(dir(host)).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(ENDING)?.to_owned())).collect()
}
