//! Configuration of the measured daemons: keys that the benchmark requires, and keys from `--settings` that the user
//! wants to compare.

use std::str::FromStr;

use anyhow::{Context as _, bail, ensure};
use integration::network::Network;
use toml::{Table, Value};

/// Name and configuration keys of an additional executord: `NAME=TOML`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) name: String,
    keys: Table,
}

impl FromStr for Settings {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (name, keys) =
            text.split_once('=').context("use NAME=TOML, for example 'slow=launcher.watchdog_seconds = 0'")?;
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        ensure!(
            !name.is_empty() && name.len() <= 24 && name.chars().all(plain),
            "the name {name:?} must be 1 to 24 letters, digits, `-`, `_` or `.`"
        );
        let keys = keys.parse::<Table>().with_context(|| format!("the settings of {name:?} are not TOML"))?;
        Ok(Self { name: name.to_owned(), keys })
    }
}

impl Settings {
    /// Returns the settings of an executord without a warm pool.
    pub(crate) fn cold() -> Self {
        let none = Table::from_iter([("size".to_owned(), Value::Integer(0))]);
        Self { name: "cold".to_owned(), keys: Table::from_iter([("warm_pool".to_owned(), Value::Table(none))]) }
    }
}

/// Checks that no name is used twice.
pub(crate) fn check_names(settings: &[Settings]) -> anyhow::Result<()> {
    for (index, one) in settings.iter().enumerate() {
        if settings[..index].iter().any(|other| other.name == one.name) {
            bail!("--settings: the name {:?} is given twice", one.name);
        }
    }
    Ok(())
}

/// Returns the configuration file of the executord with this index, for `containers` simultaneous containers. The file
/// contains the benchmark's own keys, overridden by the keys of `settings`.
pub(crate) fn file(
    containers: u32,
    (network, index): (Option<&Network>, usize),
    settings: Option<&Settings>,
) -> anyhow::Result<String> {
    // The memory capacity is too large to refuse a container, and reserves no memory. The id ranges suffice for several
    // daemons with the maximum number of containers. Each daemon has its own built-in network, because all interfaces
    // are on one host.
    let bridge = format!(
        "[warm_pool]\nnetwork = \"bridge\"\n[networks.bridge]\ninterface = \"ex-bench{index}\"\nipv4 = \"10.{}.0.0/16\"\n\
         ipv6 = \"fd00:bec:{index}::/64\"\n",
        130 + index
    );
    let own = format!(
        "[policy]\nuserns_pool_ranges = 4096\n{}\n[capacity]\ncontainers = {containers}\nmemory_bytes = {}\n{}",
        network.map(Network::policy).unwrap_or_default(),
        1_u64 << 40,
        if network.is_some() { &bridge } else { "" },
    );
    let mut table: Table = own.parse().context("cannot parse the benchmark's own configuration")?;
    if let Some(settings) = settings {
        merge(&mut table, &settings.keys);
    }
    Ok(table.to_string())
}

/// Merges `keys` into a table. Nested tables are merged; everything else is replaced.
fn merge(table: &mut Table, keys: &Table) {
    for (key, value) in keys {
        match (table.get_mut(key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => merge(old, new),
            _ => drop(table.insert(key.clone(), value.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_replace_keys_and_keep_the_others() {
        let settings: Settings = "few=capacity.containers = 7\nlog_level = \"warn\"".parse().unwrap();
        let file: Table = file(1000, (None, 0), Some(&settings)).unwrap().parse().unwrap();
        assert_eq!(file["capacity"]["containers"].as_integer(), Some(7));
        assert_eq!(file["capacity"]["memory_bytes"].as_integer(), Some(1 << 40));
        assert_eq!(file["log_level"].as_str(), Some("warn"));
    }

    #[test]
    fn wrong_settings_are_named() {
        let error = |text: &str| format!("{:#}", text.parse::<Settings>().unwrap_err());
        assert!(error("nothing").contains("NAME=TOML"));
        assert!(error("a b=x = 1").contains("\"a b\""));
        assert!(error("a=x = ").contains("not TOML"));
        let twice = ["a=x = 1", "b=x = 1", "a=x = 2"].map(|text| text.parse().unwrap());
        assert!(check_names(&twice[..2]).is_ok());
        assert!(check_names(&twice).unwrap_err().to_string().contains("\"a\" is given twice"));
    }
}
