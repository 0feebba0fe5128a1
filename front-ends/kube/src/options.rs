//! Facts about the host, and choices of the user.

use std::collections::BTreeMap;

/// Network of the pods that do not ask for the host's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PodNetwork {
    /// Loopback alone.
    #[default]
    None,
    /// The host's.
    Host,
    /// A network that the operator configured; the first one where the name is empty.
    Cni(String),
}

/// A directory of the host that the operator lends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostVolume {
    /// Name.
    pub name: String,
    /// The directory.
    pub path: String,
    /// No container can write to it.
    pub read_only: bool,
}

/// Options of lowering.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Name of the play: what `down` takes down together.
    pub play: String,
    /// Network of the pods.
    pub network: PodNetwork,
    /// Connections to beyond the pod's network are allowed.
    pub egress: bool,
    /// Root file systems to take instead of images, by the image's name as it is written.
    pub images: BTreeMap<String, String>,
    /// Name of the node (`spec.nodeName`).
    pub node_name: String,
    /// Memory of the node in bytes.
    pub memory_bytes: u64,
    /// Processors of the node in thousandths.
    pub cpu_millis: u64,
    /// Directories that the operator lends (P57). Where nobody was asked, every path is taken, for a plan that is looked at alone.
    pub host_volumes: Option<Vec<HostVolume>>,
    /// Directories of the host below which the operator lends every path.
    pub host_paths: Vec<String>,
}
