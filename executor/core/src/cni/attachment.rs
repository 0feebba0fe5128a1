//! Attachments to networks, kept on disk from before ADD, so that any later process can undo them with DEL.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Capabilities, Network, Version};
use crate::ident::ContainerId;

/// Name of the interface in the container.
pub const INTERFACE: &str = "eth0";
/// Bytes of a container's id in its name for plugins, which put the name into comments of at most 255 bytes.
const ID_SHOWN: usize = 40;

/// A container on a network, or on its way there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The container.
    pub id: ContainerId,
    /// Name of the container for plugins (`CNI_CONTAINERID`).
    pub cni_id: String,
    /// Path of the network namespace, while it exists.
    pub netns: PathBuf,
    /// The boot in which that is so.
    pub boot_id: String,
    /// The network as it was configured then: what is configured meanwhile does not matter to it.
    pub network: Network,
    /// The version in use.
    pub version: Version,
    /// Capabilities that were requested from the plugins.
    pub asked: Capabilities,
    /// The result so far.
    pub result: Option<Value>,
}

/// The name of a container to plugins: its id as far as there is room, and something that no other container has, be
/// it of another executor or one of the same id at another time.
pub fn container_id(id: &ContainerId, unique: &str) -> String {
    let shown: String = id.as_str().chars().take(ID_SHOWN).collect();
    format!("{shown}-{unique}")
}
