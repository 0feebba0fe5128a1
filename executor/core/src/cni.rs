//! Networks by the Container Network Interface, as far as it is decided and not done: what the operator's
//! configuration says, what a plugin is given, what its answer means.
//!
//! In go the bytes of a configuration file and of a plugin's answer; out come a [`Network`], the JSON for a plugin's
//! standard input, [`Addresses`] and errors in the plugin's own words. The rules are those of the CNI specification,
//! versions 0.3.1 to 1.1.0. Configuration is the operator's and plugins are the operator's programs, but everything
//! that either says is bounded all the same. Not carried out: CHECK, STATUS and GC, which no step of a container's
//! life needs.

mod answer;
mod attachment;
mod config;
mod words;

pub use answer::{Address, Addresses, Dns, PluginFailure, plugin_failure, supported_versions};
pub use attachment::{Attachment, INTERFACE, container_id};
pub use config::{BadConfig, CONFIG_MAX, Network, PLUGINS_MAX, Plugin, is_config_name};
pub use words::{Capabilities, Verb, stdin};

use serde::{Deserialize, Serialize};

/// A version of the specification that is spoken here, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Version {
    /// 0.3.1: the first one with chains of plugins as they are today.
    #[serde(rename = "0.3.1")]
    V0_3_1,
    /// 0.4.0.
    #[serde(rename = "0.4.0")]
    V0_4_0,
    /// 1.0.0.
    #[serde(rename = "1.0.0")]
    V1_0_0,
    /// 1.1.0.
    #[serde(rename = "1.1.0")]
    V1_1_0,
}

impl Version {
    /// Every supported version.
    pub const ALL: [Self; 4] = [Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];

    /// Returns the version as configurations spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// The version of a name; none for one that is not spoken here.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.name() == name)
    }
}

#[cfg(test)]
mod tests;
