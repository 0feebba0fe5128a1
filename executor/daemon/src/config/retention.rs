//! The table `retention`: completed containers and events that are kept.

use std::path::Path;
use std::time::Duration;

use executor_core::settings::Bytes;
use serde::Deserialize;

use super::{Check, ConfigError, disk_of};

/// The part of the state directory's file system that completed containers may take where the file does not say.
const DISK_PART: u64 = 10;

/// The table as the file has it.
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

/// Limits of what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionSettings {
    /// Maximum number of completed containers.
    pub completed: usize,
    /// Maximum time for which a completed container is kept.
    pub kept_for: Duration,
    /// Maximum size in bytes of the logs, outputs and records of all completed containers.
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
            bytes: self.bytes.map_or_else(|| disk_of(state_dir) / DISK_PART, |bytes| bytes.0),
            events: self.events,
        })
    }
}
