//! Reads the table `quarantine`: time limits of lifecycle phases, after which a container is quarantined.

use std::time::Duration;

use serde::Deserialize;

use super::faults::Faults;
use super::{Check, ConfigError};
use crate::model::quarantine::PhaseLimits;

/// Maximum value of a phase's time limit, in seconds.
const LIMIT_MAX: u64 = 3600;

/// The table `quarantine` of the file.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct QuarantineAfter {
    create_seconds: u64,
    stop_seconds: u64,
    wipe_seconds: u64,
    removal_seconds: u64,
}

impl Default for QuarantineAfter {
    fn default() -> Self {
        Self { create_seconds: 300, stop_seconds: 60, wipe_seconds: 300, removal_seconds: 120 }
    }
}

impl QuarantineAfter {
    pub(super) fn resolve(&self, check: &Check) -> Result<PhaseLimits, ConfigError> {
        let mut faults = Faults::default();
        let mut limit = |key, seconds: u64| {
            if !(1..=LIMIT_MAX).contains(&seconds) {
                faults.add(check.fault(key, &seconds, &format!("must be 1 to {LIMIT_MAX}")));
            }
            Duration::from_secs(seconds)
        };
        let limits = PhaseLimits {
            create: limit("quarantine.create_seconds", self.create_seconds),
            stop: limit("quarantine.stop_seconds", self.stop_seconds),
            wipe: limit("quarantine.wipe_seconds", self.wipe_seconds),
            removal: limit("quarantine.removal_seconds", self.removal_seconds),
        };
        ConfigError::all(faults.0)?;
        Ok(limits)
    }
}
