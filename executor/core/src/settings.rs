//! Parses sections of the configuration file that more than one process reads, and sizes with units.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Component, Path};
use std::time::Duration;

use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// SHA-256 of each section of a configuration file that executord and the launcher both read, by the section's name.
/// Missing and empty sections have no digest.
pub type SectionDigests = BTreeMap<String, Vec<u8>>;

/// Sections that executord and the launcher both read as a whole.
const SHARED_SECTIONS: [&str; 9] =
    ["policy", "volumes", "devices", "apparmor", "launcher", WARM_POOL_OLD, "warm_pool", "identity", "networks"];
/// Old name of the section `[warm_pool]`. The section is still read, with a warning.
pub const WARM_POOL_OLD: &str = "shells";
/// Section of which executord and the launcher share only some keys ([`IMAGE_KEYS`]).
const IMAGES: &str = "images";
/// Keys of [`crate::image::ImageRules`].
const IMAGE_KEYS: [&str; 3] = ["allow", "allow_import", "allow_archives"];

/// Returns the digests of the sections that executord and the launcher both read. `document` is the whole configuration
/// file.
pub fn section_digests(document: &Value) -> SectionDigests {
    let whole = SHARED_SECTIONS.iter().filter_map(|name| Some((*name, document.get(name)?.clone())));
    let images = document.get(IMAGES).map(|images| {
        let keys = IMAGE_KEYS.iter().filter_map(|key| Some(((*key).to_owned(), images.get(key)?.clone())));
        (IMAGES, Value::Object(keys.collect()))
    });
    let is_empty = |value: &Value| match value {
        Value::Object(keys) => keys.is_empty(),
        Value::Array(tables) => tables.is_empty(),
        _ => false,
    };
    let sections = whole.chain(images).filter(|(_, value)| !is_empty(value));
    sections.map(|(name, value)| (name.to_owned(), Sha256::digest(value.to_string()).to_vec())).collect()
}

/// Returns the names of the sections whose digests differ, sorted.
pub fn differing_sections(one: &SectionDigests, other: &SectionDigests) -> Vec<String> {
    let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    names.into_iter().filter(|name| one.get(*name) != other.get(*name)).cloned().collect()
}

/// A number of bytes: `268435456`, or a string with a unit, `"256M"`, `"1.5GiB"`. Units are powers of 1024.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Parses a size with a unit.
    fn parse(text: &str) -> Option<Self> {
        let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match text[number.len()..].to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let is_number = |part: &str| (1..=18).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || !is_number(fraction) {
            return None;
        }
        let tens = 10u128.pow(u32::try_from(fraction.len()).ok()?);
        let scaled = |part: &str| Some(part.parse::<u128>().ok()? << unit);
        u64::try_from(scaled(whole)? + scaled(fraction)? / tens).ok().map(Self)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BytesVisitor)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

struct BytesVisitor;

impl Visitor<'_> for BytesVisitor {
    type Value = Bytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of bytes, such as 268435456, or a string with a unit, such as \"256M\" or \"1.5GiB\"")
    }

    fn visit_u64<E: Error>(self, bytes: u64) -> Result<Bytes, E> {
        Ok(Bytes(bytes))
    }

    fn visit_i64<E: Error>(self, bytes: i64) -> Result<Bytes, E> {
        u64::try_from(bytes).map(Bytes).map_err(|_| E::invalid_value(Unexpected::Signed(bytes), &self))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Bytes, E> {
        Bytes::parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// Serialization of `u64` fields that hold a number of bytes (`#[serde(with = ...)]`).
pub mod bytes {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Bytes;

    /// Deserializes a number of bytes, or a string with a unit.
    ///
    /// # Errors
    /// Returns an error if the value is neither a number nor a string with a unit.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        Bytes::deserialize(deserializer).map(|bytes| bytes.0)
    }

    /// Serializes a number of bytes.
    ///
    /// # Errors
    /// Returns an error if the serializer fails.
    #[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
    pub fn serialize<S: Serializer>(bytes: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(*bytes)
    }
}

/// Serialization of fields that hold bytes per second, or -1 for no limit.
pub mod rate {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Bytes;

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum RawLimit {
        Number(i64),
        Text(Bytes),
    }

    /// Deserializes a number of bytes per second, which may be negative, or a string with a unit.
    ///
    /// # Errors
    /// Returns an error if the value is neither a number nor a string with a unit.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
        let bad = "must be a number of bytes per second, such as 65536 or \"64K\", or -1 for no limit";
        match RawLimit::deserialize(deserializer).map_err(|_| D::Error::custom(bad))? {
            RawLimit::Number(number) => Ok(number),
            RawLimit::Text(bytes) => i64::try_from(bytes.0).map_err(|_| D::Error::custom(bad)),
        }
    }

    /// Serializes a number of bytes per second.
    ///
    /// # Errors
    /// Returns an error if the serializer fails.
    #[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
    pub fn serialize<S: Serializer>(rate: &i64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(*rate)
    }
}

/// Section `[launcher]`.
#[derive(Deserialize, Debug)]
#[serde(default, deny_unknown_fields)]
pub struct LauncherSettings {
    /// Parent of the containers' cgroups, relative to each hierarchy's mount.
    pub cgroup_parent: String,
    /// Size at which a log file is rotated, in bytes; one older file is kept.
    #[serde(with = "bytes")]
    pub log_bytes_max: u64,
    /// True if layers of images may contain devices. No container can use these devices: its root is mounted `nodev`.
    pub image_devices: bool,
    /// Time limit of a CNI plugin, in seconds: 1 to 300.
    pub cni_plugin_seconds: u64,
    /// True if stale attachments are removed by CNI's GC. Other runtimes must not use the same networks.
    pub cni_gc: bool,
    /// Watchdog timeout in seconds: 2 to 3600, or 0 for no watchdog. A shim whose event loop does not iterate for this
    /// time is killed.
    pub watchdog_seconds: u64,
}

/// Section `[warm_pool]`.
#[derive(Deserialize, Debug)]
#[serde(default, deny_unknown_fields)]
pub struct WarmPoolSettings {
    /// Target number of warm containers, each for one launch: 0 (none) to 64. `ready` is the key's old name.
    #[serde(alias = "ready")]
    pub size: u32,
    /// Built-in network for a second group of warm containers, of the same size; no second group if empty.
    pub network: String,
}

/// Maximum configurable number of warm containers.
const WARM_POOL_SIZE_MAX: u32 = 64;
/// Default size of the warm pool. A warm container uses about 0.3 MB of memory and a range of ids.
const WARM_POOL_SIZE_DEFAULT: u32 = 4;

impl Default for WarmPoolSettings {
    fn default() -> Self {
        Self { size: WARM_POOL_SIZE_DEFAULT, network: String::new() }
    }
}

impl WarmPoolSettings {
    /// Checks the values of the keys in `[warm_pool]`.
    ///
    /// # Errors
    /// Returns the first invalid value if there is one.
    pub fn check(&self) -> Result<(), Unusable> {
        if self.size <= WARM_POOL_SIZE_MAX {
            return Ok(());
        }
        let why = format!("0 to {WARM_POOL_SIZE_MAX} is allowed");
        Err(Unusable { key: "warm_pool.size".into(), value: self.size.to_string(), why })
    }

    /// Checks that the network is one of `networks`.
    ///
    /// # Errors
    /// Returns the network's name if it is not a built-in network.
    pub fn check_network<'a>(&self, mut networks: impl Iterator<Item = &'a String>) -> Result<(), Unusable> {
        if self.network.is_empty() || networks.any(|name| *name == self.network) {
            return Ok(());
        }
        let why = "is not a built-in network; use a name from [networks]".to_owned();
        Err(Unusable { key: "warm_pool.network".into(), value: self.network.clone(), why })
    }
}

/// Section `[apparmor]`.
#[derive(Deserialize, Debug, Default)]
#[serde(default, deny_unknown_fields)]
pub struct AppArmor {
    /// AppArmor profiles that containers can use.
    pub profiles: Vec<String>,
}

/// Minimum watchdog timeout, in seconds.
const WATCHDOG_SECONDS_MIN: u64 = 2;
/// Maximum watchdog timeout, in seconds.
const WATCHDOG_SECONDS_MAX: u64 = 3600;

/// Maximum time limit of a CNI plugin, in seconds.
const CNI_PLUGIN_SECONDS_MAX: u64 = 300;

/// Minimum size at which a log file is rotated, in bytes: an entry must fit.
const LOG_BYTES_MIN: u64 = 64 << 10;

/// An invalid value in the configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Unusable {
    /// Key, including its section.
    pub key: String,
    /// Value from the configuration.
    pub value: String,
    /// Description of the error, and of valid values.
    pub why: String,
}

impl LauncherSettings {
    /// Checks the values of the keys in `[launcher]`.
    ///
    /// # Errors
    /// Returns the first invalid value if there is one.
    pub fn check(&self) -> Result<(), Unusable> {
        let unusable = |key: &str, value: &dyn fmt::Display, why: String| {
            Err(Unusable { key: key.into(), value: value.to_string(), why })
        };
        let parent = Path::new(&self.cgroup_parent);
        let plain = parent.components().all(|part| matches!(part, Component::Normal(_)));
        if self.cgroup_parent.is_empty() || !plain {
            let why = "must be a relative path without `.` and `..`".to_owned();
            return unusable("launcher.cgroup_parent", &format!("{parent:?}"), why);
        }
        if !(1..=CNI_PLUGIN_SECONDS_MAX).contains(&self.cni_plugin_seconds) {
            let why = format!("1 to {CNI_PLUGIN_SECONDS_MAX} is allowed");
            return unusable("launcher.cni_plugin_seconds", &self.cni_plugin_seconds, why);
        }
        let seconds = self.watchdog_seconds;
        if seconds != 0 && !(WATCHDOG_SECONDS_MIN..=WATCHDOG_SECONDS_MAX).contains(&seconds) {
            let why = format!("{WATCHDOG_SECONDS_MIN} to {WATCHDOG_SECONDS_MAX} is allowed, or 0 for no watchdog");
            return unusable("launcher.watchdog_seconds", &seconds, why);
        }
        Ok(())
    }

    /// Returns the time limit of a CNI plugin.
    pub fn cni_patience(&self) -> Duration {
        Duration::from_secs(self.cni_plugin_seconds)
    }

    /// Returns the watchdog timeout of a shim's event loop; `None` if shims are not monitored.
    pub fn watchdog(&self) -> Option<Duration> {
        Some(self.watchdog_seconds).filter(|seconds| *seconds > 0).map(Duration::from_secs)
    }

    /// Returns the size at which a log file is rotated, in bytes.
    pub fn log_bytes(&self) -> u64 {
        self.log_bytes_max.max(LOG_BYTES_MIN)
    }
}

impl Default for LauncherSettings {
    fn default() -> Self {
        Self {
            cgroup_parent: "executor".into(),
            log_bytes_max: 16 << 20,
            image_devices: false,
            cni_plugin_seconds: 30,
            cni_gc: false,
            watchdog_seconds: 180,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_leave_out_executord_sections() {
        let digests = |text: &str| section_digests(&serde_json::from_str(text).unwrap());
        let before = digests(r#"{"policy": {"allow_exec": true}, "images": {"allow_import": true, "max_bytes": 5}}"#);
        let other = digests(
            r#"{"server": {"connections": 5}, "volumes": [], "images": {"allow_import": true}, "policy": {"allow_exec": true}}"#,
        );
        assert_eq!(differing_sections(&before, &other), Vec::<String>::new());
        let changed =
            digests(r#"{"images": {"allow_import": false}, "policy": {"allow_exec": true}, "warm_pool": {"size": 1}}"#);
        assert_eq!(differing_sections(&before, &changed), ["images", "warm_pool"]);
    }

    #[test]
    fn sizes_with_and_without_a_unit() {
        let of = |text: &str| serde_json::from_str::<Bytes>(text).map(|bytes| bytes.0);
        let table =
            [("0", 0), ("5", 5), ("\"0\"", 0), ("\"256M\"", 256 << 20), ("\"1.5GiB\"", 3 << 29), ("\"64k\"", 1 << 16)];
        for (text, bytes) in table {
            assert_eq!(of(text).unwrap(), bytes, "{text}");
        }
        for bad in ["-1", "1.5", "true", "\"\"", "\"M\"", "\"1 M\"", "\"-1\"", "\"5X\"", "\"16777216T\"", "\"1.\""] {
            let reported = of(bad).unwrap_err().to_string();
            assert!(reported.contains("256M"), "{bad}: {reported}");
        }
    }
}
