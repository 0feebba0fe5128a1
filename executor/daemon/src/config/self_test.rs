//! Reads the table `self_test`: interval and time limit of the self-test.

use std::time::Duration;

use serde::Deserialize;

use super::faults::Faults;
use super::{Check, ConfigError};

/// Maximum value of the interval between tests, in seconds.
const INTERVAL_MAX: u64 = 24 * 3600;
/// Maximum value of the time limit of a test, in seconds.
const TIMEOUT_MAX: u64 = 600;

/// The table `self_test` of the file.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SelfTest {
    interval_seconds: u64,
    timeout_seconds: u64,
}

impl Default for SelfTest {
    fn default() -> Self {
        Self { interval_seconds: 600, timeout_seconds: 60 }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct SelfTestSettings {
    /// Interval between tests; zero disables the tests.
    pub interval: Duration,
    /// Time limit of a test.
    pub timeout: Duration,
}

impl SelfTest {
    pub(super) fn resolve(&self, check: &Check) -> Result<SelfTestSettings, ConfigError> {
        let mut faults = Faults::default();
        if self.interval_seconds > INTERVAL_MAX {
            let why = format!("must be 0 to {INTERVAL_MAX}");
            faults.add(check.fault("self_test.interval_seconds", &self.interval_seconds, &why));
        }
        if !(1..=TIMEOUT_MAX).contains(&self.timeout_seconds) {
            let why = format!("must be 1 to {TIMEOUT_MAX}");
            faults.add(check.fault("self_test.timeout_seconds", &self.timeout_seconds, &why));
        }
        ConfigError::all(faults.0)?;
        Ok(SelfTestSettings {
            interval: Duration::from_secs(self.interval_seconds),
            timeout: Duration::from_secs(self.timeout_seconds),
        })
    }
}
