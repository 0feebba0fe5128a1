//! A shim as the launcher sees it: what it watches, and what it holds for the case that the shim is lost.

use std::os::fd::OwnedFd;

use executor_core::ident::ContainerId;
use executor_core::time::Timestamp;
use executor_secrets::volume::Volume;
use executor_sys::memfile::MemFile;
use executor_sys::seqpacket::Seqpacket;

/// A shim that is watched.
pub(crate) struct Shim {
    /// Its container.
    pub id: ContainerId,
    /// When its container was admitted.
    pub created_at: Timestamp,
    /// Its pid.
    pub pid: i32,
    /// It is a child of this launcher, to be waited for.
    pub child: bool,
    /// Readable when it has ended.
    pub pidfd: OwnedFd,
    /// It tells its states here, and hands over its volume; gone when it has closed its end.
    pub lifeline: Option<Seqpacket>,
    /// Second handle on its secret files.
    pub volume: Option<Volume>,
    /// What its container is started with, until the shim has wiped it.
    pub inputs: Vec<MemFile>,
    /// The range of ids that it was given.
    pub id_range: Option<u32>,
    /// It listens for daemons.
    pub(crate) listening: bool,
    /// It has told that all is done, and is about to end.
    pub(crate) done: bool,
}
