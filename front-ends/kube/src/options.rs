//! Defines the options of lowering: properties of the host, and choices of the user.
//!
//! Rules are numbered as in `docs/guides/kube-rules.md`.

use std::collections::BTreeMap;

/// Network of pods that do not set `hostNetwork`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PodNetwork {
    /// The pods have only a loopback interface.
    #[default]
    None,
    Host,
    /// A network that the operator configured; empty for the first network.
    Cni(String),
}

/// A host directory that the operator offers as a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostVolume {
    pub name: String,
    pub path: String,
    /// True if containers cannot write to the volume.
    pub read_only: bool,
}

/// Options of lowering.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Name of the play. `down` removes all pods of a play.
    pub play: String,
    pub network: PodNetwork,
    /// True if pods may connect to addresses outside their network.
    pub egress: bool,
    /// Root file systems that replace images, by the image name in the files.
    pub images: BTreeMap<String, String>,
    /// Name of the node (`spec.nodeName`).
    pub node_name: String,
    /// Memory of the node, in bytes.
    pub memory_bytes: u64,
    /// CPU capacity of the node, in thousandths of a CPU.
    pub cpu_millis: u64,
    /// Host directories that the operator offers as volumes (rule P57). If `None`, the directories are unknown and
    /// every path is accepted: systemd units are generated without a connection to executord.
    pub host_volumes: Option<Vec<HostVolume>>,
    /// Host directories below which every path may be mounted.
    pub host_paths: Vec<String>,
}
