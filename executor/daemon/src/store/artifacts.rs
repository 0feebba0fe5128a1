//! What downloads and uploads share: their bounds, their turns, and the cache of artifacts.

mod cache;
mod turns;

use std::path::PathBuf;
use std::time::Duration;

use executor_core::plan::AddressRange;
use executor_transfers::job::Rules;

pub(crate) use cache::{Cache, Entry};
pub(crate) use turns::{Turn, Turns};

/// Settings of transfers.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Addresses that are denied.
    pub denied: Vec<AddressRange>,
    /// Exceptions from them, and from this machine's own addresses.
    pub allowed: Vec<AddressRange>,
    /// Maximum bytes of a download or an upload.
    pub bytes_max: u64,
    /// Maximum bytes of what a downloaded archive unpacks to.
    pub unpacked_bytes_max: u64,
    /// Longest time of a transfer, without the time that it waits for its turn.
    pub time_max: Duration,
    /// Longest time without a byte.
    pub idle: Duration,
    /// Maximum number of redirects.
    pub redirects_max: u32,
    /// Transfers at once.
    pub at_once: usize,
    /// Transfers of one container at once.
    pub at_once_per_container: usize,
    /// Attempts at a transfer.
    pub attempts: u32,
    /// Maximum bytes of the cache; 0 for none.
    pub cache_bytes_max: u64,
    /// Certificates that are trusted beside the system's.
    pub ca_file: Option<PathBuf>,
}

impl Settings {
    /// Addresses that are denied by default: those of no host, loopback, link-local and multicast.
    pub const DENIED: [&str; 8] =
        ["0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::", "::1", "fe80::/10", "ff00::/8"];

    /// Returns the rules for connections, as workers have them.
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

/// What the transfers of a node share.
#[derive(Debug)]
pub struct Artifacts {
    pub(crate) settings: Settings,
    pub(crate) turns: Turns,
    pub(crate) cache: Cache,
}

impl Artifacts {
    /// Makes what the transfers of a node share, whose files are in this directory. What a daemon that was killed left there is removed.
    pub fn new(settings: Settings, dir: PathBuf) -> Self {
        let cache = Cache::open(dir, settings.cache_bytes_max);
        Self { turns: Turns::new(settings.at_once, settings.at_once_per_container), cache, settings }
    }
}
