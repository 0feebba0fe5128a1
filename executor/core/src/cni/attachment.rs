//! Defines attachments of containers to networks. Each attachment is stored on disk before ADD, so that a later process
//! can undo the attachment with DEL.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Capabilities, CniNetwork, Version};
use crate::ident::ContainerId;
use crate::plan::CniArgument;

/// Name of the interface in the container.
pub const INTERFACE: &str = "eth0";
/// Maximum length of the part of a CNI id that repeats the container's id, in bytes. Plugins put the CNI id into
/// comments of at most 255 bytes.
const ID_SHOWN: usize = 40;

/// A container that is, or may be, connected to a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Id of the connected container or pod.
    pub id: ContainerId,
    /// Id of the container for plugins (`CNI_CONTAINERID`).
    pub cni_id: String,
    /// Path of the network namespace while the namespace exists.
    pub netns: PathBuf,
    /// Id of the boot in which the namespace path is valid.
    pub boot_id: String,
    /// Configuration of the network at the time of ADD; later changes of the configuration have no effect.
    pub network: CniNetwork,
    /// Version of the CNI specification in use.
    pub version: Version,
    /// Capabilities that are requested from the plugins.
    pub asked: Capabilities,
    /// Arguments for the plugins (CNI_ARGS).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<CniArgument>,
    /// Result of the plugins that ADD has run so far.
    pub result: Option<Value>,
    /// Progress of ADD or DEL.
    #[serde(default)]
    pub progress: Progress,
}

/// Progress of ADD or DEL for an attachment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Progress {
    /// ADD has not completed, or has failed.
    Adding,
    /// ADD has succeeded.
    #[default]
    Added,
    /// DEL has failed. Garbage collection may remove the remaining resources.
    DelFailed,
}

/// Returns the id that plugins get for a container (`CNI_CONTAINERID`): the truncated container id and a unique part.
/// The unique part distinguishes the container from containers of other executors, and from earlier and later
/// containers with the same id.
pub fn container_id(id: &ContainerId, unique: &str) -> String {
    let shown: String = id.as_str().chars().take(ID_SHOWN).collect();
    format!("{shown}-{unique}")
}
