//! Shared state of downloads and uploads: limits, queues, and the artifact cache.

mod cache;
mod turns;

use std::path::PathBuf;
use std::time::Duration;

use executor_core::plan::AddressRange;
use executor_transfers::job::Rules;

pub(crate) use cache::{Cache, Entry};
pub(crate) use turns::{TransferSlot, TransferSlots};

/// Download and upload settings.
#[derive(Clone, Debug)]
pub struct Settings {
    pub denied: Vec<AddressRange>,
    /// Exceptions to `denied`, and to the denial of this host's own addresses.
    pub allowed: Vec<AddressRange>,
    /// Maximum size of a download or an upload, in bytes.
    pub bytes_max: u64,
    /// Maximum unpacked size of a downloaded archive, in bytes.
    pub unpacked_bytes_max: u64,
    /// Maximum time of a transfer, without the time in the queue.
    pub time_max: Duration,
    /// Time without data after which a transfer fails.
    pub idle: Duration,
    /// Maximum number of redirects.
    pub redirects_max: u32,
    /// Maximum number of concurrent transfers.
    pub at_once: usize,
    /// Maximum number of concurrent transfers per container.
    pub at_once_per_container: usize,
    /// Maximum number of attempts of a transfer.
    pub attempts: u32,
    /// Maximum size of the cache in bytes; 0 disables the cache.
    pub cache_bytes_max: u64,
    /// CA certificates that are trusted in addition to the system's.
    pub ca_file: Option<PathBuf>,
}

impl Settings {
    /// Addresses that are denied by default: unspecified, loopback, link-local, multicast and reserved.
    pub const DENIED: [&str; 8] =
        ["0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::", "::1", "fe80::/10", "ff00::/8"];

    /// Returns the connection rules for workers.
    pub(crate) fn rules(&self) -> Rules {
        Rules {
            denied: self.denied.clone(),
            allowed: self.allowed.clone(),
            redirects_max: self.redirects_max,
            idle: self.idle,
            ca_file: self.ca_file.clone(),
            bytes_max: self.bytes_max,
        }
    }
}

/// Shared state of a node's transfers.
#[derive(Debug)]
pub struct Artifacts {
    pub(crate) settings: Settings,
    pub(crate) turns: TransferSlots,
    pub(crate) cache: Cache,
}

impl Artifacts {
    /// Creates the shared state, with its files in `dir`. Leftover files of a killed daemon are removed.
    pub fn new(settings: Settings, dir: PathBuf) -> Self {
        let cache = Cache::open(dir, settings.cache_bytes_max);
        Self { turns: TransferSlots::new(settings.at_once, settings.at_once_per_container), cache, settings }
    }
}
