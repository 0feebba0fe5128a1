//! Parses network configurations of the operator: a list of plugins (`.conflist`), or a single plugin (`.conf`,
//! `.json`).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Version;

/// Maximum size of a configuration file, in bytes.
pub const CONFIG_MAX: u64 = 256 << 10;
/// Maximum number of plugins of a network.
pub const PLUGINS_MAX: usize = 16;
/// Maximum length of a network name or plugin name, in bytes.
const NAME_MAX: usize = 128;
/// Maximum number of versions that a configuration may list.
const VERSIONS_MAX: usize = 32;

/// A CNI network that the operator has configured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CniNetwork {
    /// Name of the network, under which plugins keep their state.
    pub name: String,
    /// Versions in the configuration that the executor supports: at least one, ascending.
    pub versions: Vec<Version>,
    /// Plugins in the order of ADD; at least one.
    pub plugins: Vec<Plugin>,
    /// True if CHECK must not be called (`disableCheck`).
    #[serde(default)]
    pub disable_check: bool,
    /// True if GC must not be called (`disableGC`).
    #[serde(default)]
    pub disable_gc: bool,
}

/// A plugin in the configuration of a CNI network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plugin {
    /// Name of the plugin's program (`type`).
    pub kind: String,
    /// Configuration of the plugin, unchanged.
    pub config: Map<String, Value>,
}

/// Error from parsing a network configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadConfig {
    /// The file is not a JSON object.
    #[error("is not a JSON object: {0}")]
    Json(String),
    /// A field is missing or invalid; holds the field and the reason.
    #[error("`{0}` {1}")]
    Field(String, String),
}

fn field(name: impl Into<String>, why: impl Into<String>) -> BadConfig {
    BadConfig::Field(name.into(), why.into())
}

/// Returns true if a file of this name is a network configuration.
pub fn is_config_name(name: &str) -> bool {
    !name.starts_with('.') && [".conflist", ".conf", ".json"].iter().any(|ending| name.ends_with(ending))
}

impl CniNetwork {
    /// Parses the content of a configuration file.
    ///
    /// # Errors
    /// Returns an error if the content is not a network configuration, or lists only unsupported versions.
    pub fn parse(bytes: &[u8]) -> Result<Self, BadConfig> {
        let root: Value = serde_json::from_slice(bytes).map_err(|error| BadConfig::Json(error.to_string()))?;
        let Value::Object(root) = root else { return Err(BadConfig::Json("the top level is not an object".into())) };
        let name = text(&root, "name")?;
        if !is_name(name) {
            let why = format!(
                "is not a valid network name: use at most {NAME_MAX} letters, digits, `_`, `.` and `-`, and begin with \
                 a letter or digit"
            );
            return Err(field("name", why));
        }
        let plugins = match root.get("plugins") {
            None => vec![Value::Object(root.clone())],
            Some(Value::Array(plugins)) => plugins.clone(),
            Some(_) => return Err(field("plugins", "is not a list")),
        };
        if plugins.is_empty() || plugins.len() > PLUGINS_MAX {
            return Err(field("plugins", format!("has {} entries; 1 to {PLUGINS_MAX} are allowed", plugins.len())));
        }
        let plugins = plugins.into_iter().enumerate().map(|(index, plugin)| {
            let at = format!("plugins[{index}]");
            let Value::Object(config) = plugin else { return Err(field(at, "is not an object")) };
            let kind = text(&config, "type").map_err(|_| field(format!("{at}.type"), "is not a string"))?.to_owned();
            // The name becomes a file name below the operator's plugin directories.
            if !is_name(&kind) {
                let why = format!(
                    "is not a valid name of a plugin: use at most {NAME_MAX} letters, digits, `_`, `.` and `-`, and \
                     begin with a letter or digit"
                );
                return Err(field(format!("{at}.type"), why));
            }
            Ok(Plugin { kind, config })
        });
        Ok(Self {
            name: name.to_owned(),
            versions: versions(&root)?,
            plugins: plugins.collect::<Result<_, _>>()?,
            disable_check: flag(&root, "disableCheck")?,
            disable_gc: flag(&root, "disableGC")?,
        })
    }
}

/// Returns the listed versions that are supported.
fn versions(root: &Map<String, Value>) -> Result<Vec<Version>, BadConfig> {
    let listed = match root.get("cniVersions") {
        None => Vec::new(),
        Some(Value::Array(list)) if list.len() <= VERSIONS_MAX => {
            let words = list.iter().map(|entry| entry.as_str());
            words
                .collect::<Option<Vec<_>>>()
                .ok_or_else(|| field("cniVersions", "has an entry that is not a string"))?
        }
        Some(_) => return Err(field("cniVersions", format!("is not a list of at most {VERSIONS_MAX} entries"))),
    };
    let single = root.get("cniVersion").map(|_| text(root, "cniVersion")).transpose()?;
    let all: Vec<&str> = listed.into_iter().chain(single).collect();
    let mut spoken: Vec<Version> = all.iter().filter_map(|name| Version::from_name(name)).collect();
    spoken.sort_unstable();
    spoken.dedup();
    if spoken.is_empty() {
        let known = Version::ALL.map(Version::name).join(", ");
        let named: String = if all.is_empty() { "is missing".into() } else { format!("is {:?}", all.join(", ")) };
        let named: String = named.chars().take(200).collect();
        return Err(field("cniVersion", format!("{named}; the supported versions are {known}")));
    }
    Ok(spoken)
}

/// Returns a boolean; false if unset. Also accepts the boolean as a string, because some existing configurations
/// contain strings.
fn flag(map: &Map<String, Value>, name: &str) -> Result<bool, BadConfig> {
    match map.get(name) {
        None => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(Value::String(text)) if text == "true" => Ok(true),
        Some(Value::String(text)) if text == "false" => Ok(false),
        Some(_) => Err(field(name, "is neither true nor false")),
    }
}

fn text<'a>(map: &'a Map<String, Value>, name: &str) -> Result<&'a str, BadConfig> {
    map.get(name).and_then(Value::as_str).ok_or_else(|| field(name, "is not a string"))
}

/// Returns true if a name is valid for a network by the CNI specification.
pub fn is_name(name: &str) -> bool {
    name.len() <= NAME_MAX
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}
