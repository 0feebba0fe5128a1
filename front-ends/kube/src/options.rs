//! Properties of the host, and options of the user.

use std::collections::BTreeMap;

/// Network of pods without `hostNetwork`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PodNetwork {
    /// Loopback only.
    #[default]
    None,
    /// The host's network.
    Host,
    /// A network that the operator configured; empty for the first one.
    Cni(String),
}

/// A directory of the host that the operator offers as a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostVolume {
    pub name: String,
    pub path: String,
    /// True if no container can write to it.
    pub read_only: bool,
}

/// Options of lowering.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Name of the play, the unit that `down` removes.
    pub play: String,
    pub network: PodNetwork,
    /// True if connections to outside the pod's network are allowed.
    pub egress: bool,
    /// Root file systems that replace images, by the image's name as written in the files.
    pub images: BTreeMap<String, String>,
    /// Name of the node (`spec.nodeName`).
    pub node_name: String,
    /// Memory of the node in bytes.
    pub memory_bytes: u64,
    /// Processors of the node in thousandths.
    pub cpu_millis: u64,
    /// Directories that the operator offers (P57). If `None`, executord was not asked and every path is accepted, for a
    /// plan that is only displayed.
    pub host_volumes: Option<Vec<HostVolume>>,
    /// Directories of the host below which every path may be mounted.
    pub host_paths: Vec<String>,
}
