//! Reads the table `transfers`: limits and destinations of downloads and uploads.

use std::path::PathBuf;
use std::time::Duration;

use executor_core::plan::AddressRange;
use executor_core::settings::Bytes;
use serde::Deserialize;

use super::faults::Faults;
use super::{Check, ConfigError};
use crate::store::artifacts::Settings;

/// Maximum number of entries of an address list.
const ADDRESSES_MAX: usize = 200;
/// Maximum value of the time limit of a transfer, in seconds.
const TIME_MAX: u64 = 7 * 24 * 3600;
/// Maximum value of the idle time limit, in seconds.
const IDLE_MAX: u64 = 3600;
/// Maximum value of the limit on redirects.
const REDIRECTS_MAX: u64 = 20;
/// Maximum value of the limits on concurrent transfers per node and per container.
const AT_ONCE_MAX: u64 = 100;
/// Maximum value of the limit on attempts.
const ATTEMPTS_MAX: u64 = 10;

/// The table `transfers` of the file.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Transfers {
    denied: Vec<String>,
    allowed: Vec<String>,
    bytes_max: Bytes,
    unpacked_bytes_max: Bytes,
    time_max_seconds: u64,
    idle_seconds: u64,
    redirects_max: u64,
    at_once: u64,
    at_once_per_container: u64,
    attempts: u64,
    cache_bytes_max: Bytes,
    ca_file: Option<PathBuf>,
}

impl Default for Transfers {
    fn default() -> Self {
        Self {
            denied: Settings::DENIED.map(str::to_owned).to_vec(),
            allowed: Vec::new(),
            bytes_max: Bytes(4 << 30),
            unpacked_bytes_max: Bytes(16 << 30),
            time_max_seconds: 3600,
            idle_seconds: 30,
            redirects_max: 10,
            at_once: 5,
            at_once_per_container: 2,
            attempts: 3,
            cache_bytes_max: Bytes(10 << 30),
            ca_file: None,
        }
    }
}

impl Transfers {
    pub(super) fn resolve(self, check: &Check) -> Result<Settings, ConfigError> {
        let mut faults = Faults::default();
        let mut within = |key: &'static str, value: u64, least: u64, most: u64| {
            if !(least..=most).contains(&value) {
                faults.add(check.fault(key, &value, &format!("must be {least} to {most}")));
            }
            value
        };
        let attempts = within("transfers.attempts", self.attempts, 1, ATTEMPTS_MAX);
        let redirects = within("transfers.redirects_max", self.redirects_max, 0, REDIRECTS_MAX);
        let at_once = within("transfers.at_once", self.at_once, 1, AT_ONCE_MAX);
        let share = within("transfers.at_once_per_container", self.at_once_per_container, 1, AT_ONCE_MAX);
        let time_max = within("transfers.time_max_seconds", self.time_max_seconds, 1, TIME_MAX);
        let idle = within("transfers.idle_seconds", self.idle_seconds, 1, IDLE_MAX);
        faults.record(check.at_least_one("transfers.bytes_max", self.bytes_max.0));
        faults.record(check.at_least_one("transfers.unpacked_bytes_max", self.unpacked_bytes_max.0));
        if let Some(path) = &self.ca_file {
            faults.record(check.absolute("transfers.ca_file", path));
        }
        let denied = addresses("transfers.denied", &self.denied, check, &mut faults);
        let allowed = addresses("transfers.allowed", &self.allowed, check, &mut faults);
        ConfigError::all(faults.0)?;
        Ok(Settings {
            denied,
            allowed,
            bytes_max: self.bytes_max.0,
            unpacked_bytes_max: self.unpacked_bytes_max.0,
            time_max: Duration::from_secs(time_max),
            idle: Duration::from_secs(idle),
            redirects_max: u32::try_from(redirects).unwrap_or(u32::MAX),
            at_once: usize::try_from(at_once).unwrap_or(usize::MAX),
            at_once_per_container: usize::try_from(share).unwrap_or(usize::MAX),
            attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
            cache_bytes_max: self.cache_bytes_max.0,
            ca_file: self.ca_file,
        })
    }
}

fn addresses(key: &'static str, texts: &[String], check: &Check, faults: &mut Faults) -> Vec<AddressRange> {
    if texts.len() > ADDRESSES_MAX {
        faults.add(check.fault(key, &texts.len(), &format!("must have at most {ADDRESSES_MAX} entries")));
        return Vec::new();
    }
    let parse = |(index, text): (usize, &String)| {
        let range = text.parse().map_err(|why| check.fault(format!("{key}[{index}]"), text, &format!("{why}")));
        faults.record(range)
    };
    texts.iter().enumerate().filter_map(parse).collect()
}
