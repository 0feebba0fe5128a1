//! Sections of the configuration file that more than one process reads.

use serde::Deserialize;

/// Section `[launcher]`.
#[derive(Deserialize, Debug)]
#[serde(default, deny_unknown_fields)]
pub struct LauncherSettings {
    /// Cgroup that the containers' cgroups are made below, relative to each hierarchy's mount.
    pub cgroup_parent: String,
    /// A log file is rotated at this size, in bytes; one older file is kept.
    pub log_bytes_max: u64,
    /// Layers of images may bring devices. No container can use one: its root is mounted `nodev`.
    pub image_devices: bool,
    /// How long a plugin of a network may take, in seconds: 1 to [`CNI_PLUGIN_SECONDS_MAX`].
    pub cni_plugin_seconds: u64,
    /// A shim that has not turned its loop for this time is killed, in seconds: [`WATCHDOG_SECONDS_MIN`] to
    /// [`WATCHDOG_SECONDS_MAX`], or 0 for never.
    pub watchdog_seconds: u64,
}

/// Shortest time for a turn of a shim's loop, in seconds.
pub const WATCHDOG_SECONDS_MIN: u64 = 2;
/// Longest.
pub const WATCHDOG_SECONDS_MAX: u64 = 3600;

/// Longest time of a network's plugin, in seconds.
pub const CNI_PLUGIN_SECONDS_MAX: u64 = 300;

/// A log file is never rotated below this size, in bytes: an entry must fit.
const LOG_BYTES_LEAST: u64 = 64 << 10;

impl LauncherSettings {
    /// The size in bytes at which a log file is rotated.
    pub fn log_bytes(&self) -> u64 {
        self.log_bytes_max.max(LOG_BYTES_LEAST)
    }
}

impl Default for LauncherSettings {
    fn default() -> Self {
        Self {
            cgroup_parent: "executor".into(),
            log_bytes_max: 16 << 20,
            image_devices: false,
            cni_plugin_seconds: 30,
            watchdog_seconds: 180,
        }
    }
}
