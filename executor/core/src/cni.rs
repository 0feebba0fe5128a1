//! Parses network configurations and plugin results of the Container Network Interface (CNI), and builds the input of
//! plugins.
//!
//! Configuration files become a [`CniNetwork`] and the JSON for a plugin's standard input. Results of plugins become
//! [`Addresses`] or errors with the plugin's own message. All of this follows the CNI specification, versions 0.3.1 to
//! 1.1.0. Configuration and plugins belong to the operator, but the size of both is limited. STATUS is not implemented,
//! because nothing in a container's lifecycle needs it.

mod answer;
mod attachment;
mod config;
mod plugin_input;

pub use answer::{Address, Addresses, Dns, PluginFailure, plugin_failure, supported_versions};
pub use attachment::{Attachment, INTERFACE, Progress, container_id};
pub use config::{BadConfig, CONFIG_MAX, CniNetwork, PLUGINS_MAX, Plugin, is_config_name, is_name};
pub use plugin_input::{Capabilities, Verb, cni_args, gc_stdin, stdin};

use serde::{Deserialize, Serialize};

/// A supported version of the CNI specification. Newer versions compare as greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Version {
    /// 0.3.1, the first version with today's plugin chains.
    #[serde(rename = "0.3.1")]
    V0_3_1,
    /// Version 0.4.0.
    #[serde(rename = "0.4.0")]
    V0_4_0,
    /// Version 1.0.0.
    #[serde(rename = "1.0.0")]
    V1_0_0,
    /// Version 1.1.0.
    #[serde(rename = "1.1.0")]
    V1_1_0,
}

impl Version {
    /// Every supported version.
    pub const ALL: [Self; 4] = [Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];

    /// Returns the version as it is written in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// Parses a version; `None` if it is not supported.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.name() == name)
    }
}

#[cfg(test)]
mod tests;
