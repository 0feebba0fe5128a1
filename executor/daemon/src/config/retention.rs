//! Reads the table `retention`: how many completed containers and events are kept.

use std::path::Path;
use std::time::Duration;

use executor_core::settings::Bytes;
use serde::Deserialize;

use super::{Check, ConfigError, disk_of};

/// Returns the default disk limit for completed containers: a tenth of the file system, but at least 1 GiB (or half of
/// the disk, if that is less). A tenth of a small disk may be smaller than the log of one container. Such a log would
/// be deleted on completion.
fn default_bytes(disk: u64) -> u64 {
    const LEAST: u64 = 1 << 30;
    (disk / 10).max(LEAST.min(disk / 2))
}

/// The table `retention` of the file.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Retention {
    completed: usize,
    hours: u64,
    bytes: Option<Bytes>,
    events: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self { completed: 10_000, hours: 24, bytes: None, events: 10_000 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionSettings {
    /// Maximum number of completed containers.
    pub completed: usize,
    /// Maximum age of a completed container.
    pub kept_for: Duration,
    /// Maximum total size of the logs, outputs and records of completed containers, in bytes.
    pub bytes: u64,
    /// Maximum number of events.
    pub events: usize,
}

impl Retention {
    pub(super) fn resolve(&self, check: &Check, state_dir: &Path) -> Result<RetentionSettings, ConfigError> {
        check.at_least_one("retention.events", self.events as u64)?;
        Ok(RetentionSettings {
            completed: self.completed,
            kept_for: Duration::from_secs(self.hours.saturating_mul(3600)),
            bytes: self.bytes.map_or_else(|| default_bytes(disk_of(state_dir)), |bytes| bytes.0),
            events: self.events,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::default_bytes;

    #[test]
    fn default_leaves_room_on_small_disks() {
        const GIB: u64 = 1 << 30;
        for (disk, bytes) in [(24 << 20, 12 << 20), (GIB, GIB / 2), (8 * GIB, GIB), (200 * GIB, 20 * GIB)] {
            assert_eq!(default_bytes(disk), bytes, "{disk}");
        }
    }
}
