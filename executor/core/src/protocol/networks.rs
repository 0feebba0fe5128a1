//! Defines the list of networks that containers can use.
//!
//! The list does not fit a packet: a memory file with a [`NetworkList`] accompanies the reply. Checks of a network's
//! containers are returned in the same way.

use std::time::Duration;

use prost::{Enumeration, Message};

/// Maximum number of names in a request, so that the request fits the launcher's buffer.
pub const NETWORK_NAMES_MAX: usize = 50;
/// Maximum number of CNI networks in a list.
pub const CNI_NETWORKS_MAX: usize = 500;
/// Maximum total size of the containers' entries in a list, in bytes. Further containers are only counted, because
/// clients reject messages of more than 4 MiB.
pub const LISTED_CONTAINERS_BYTES: usize = 2 << 20;
/// Maximum number of warnings in a list, and for each network.
pub const NETWORK_WARNINGS_MAX: usize = 50;
/// Maximum length of a warning of a list, in characters.
pub const NETWORK_WARNING_LENGTH: usize = 400;
/// Descriptor of the reply to a [`ListNetworks`]: a memory file with a [`NetworkList`].
pub const NETWORKS_FDS: [&str; 1] = ["networks"];
/// Maximum size of a [`NetworkList`], in bytes.
pub const NETWORK_LIST_MAX: u64 = 8 << 20;

/// Requests the list of networks that containers can use.
#[derive(Clone, PartialEq, Message)]
pub struct ListNetworks {
    /// Names of the networks to list, at most [`NETWORK_NAMES_MAX`]; all if empty.
    #[prost(string, repeated, tag = "1")]
    pub names: Vec<String>,
}

/// Reply to [`ListNetworks`]. The descriptors [`NETWORKS_FDS`] accompany the reply.
#[derive(Clone, PartialEq, Message)]
pub struct NetworksListed {}

/// Time limit for the checks of one network.
pub const CHECK_PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of containers in a [`NetworkChecks`]. Further containers are only counted.
pub const CHECKS_MAX: usize = 1000;

/// Checks the containers of a network with the network's plugins.
#[derive(Clone, PartialEq, Message)]
pub struct CheckNetwork {
    /// Name of the network.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Reply to [`CheckNetwork`]. A memory file with a [`NetworkChecks`] accompanies the reply.
#[derive(Clone, PartialEq, Message)]
pub struct NetworkChecked {}

/// Results of the checks of a network.
#[derive(Clone, PartialEq, Message)]
pub struct NetworkChecks {
    /// One result for each container, ordered by id, at most [`CHECKS_MAX`].
    #[prost(message, repeated, tag = "1")]
    pub checks: Vec<AttachmentCheck>,
    /// Number of containers that were not checked, because of [`CHECKS_MAX`] or the time limit.
    #[prost(uint32, tag = "2")]
    pub unchecked: u32,
}

/// Result of the check of a container.
#[derive(Clone, PartialEq, Message)]
pub struct AttachmentCheck {
    /// Id of the container or pod.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Number of a [`CheckOutcome`].
    #[prost(enumeration = "CheckOutcome", tag = "2")]
    pub outcome: i32,
    /// Message of the plugin, or the reason why no plugin was called.
    #[prost(string, tag = "3")]
    pub message: String,
}

/// Outcome of the check of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum CheckOutcome {
    /// An outcome that this version does not support.
    Unknown = 0,
    /// Every plugin has confirmed the attachment.
    Connected = 1,
    /// A plugin has reported a fault, or could not be called.
    Broken = 2,
    /// No plugin was called.
    Skipped = 3,
}

/// Opens the sockets of the name server of a built-in network. Refused with
/// [`Reason::Precondition`](super::Reason::Precondition) if another program uses a port.
#[derive(Clone, PartialEq, Message)]
pub struct OpenNameSockets {
    /// Name of the built-in network.
    #[prost(string, tag = "1")]
    pub network: String,
}

/// Reply to [`OpenNameSockets`]. The sockets accompany the reply: for each gateway of the network, in order, one UDP
/// socket and one listening TCP socket. The launcher keeps no copy.
#[derive(Clone, PartialEq, Message)]
pub struct NameSockets {}

/// Networks that containers can use.
#[derive(Clone, PartialEq, Message)]
pub struct NetworkList {
    /// Networks, ordered by name.
    #[prost(message, repeated, tag = "1")]
    pub networks: Vec<ListedNetwork>,
    /// Files that define no usable network, and records that cannot be read, each with the reason.
    #[prost(string, repeated, tag = "2")]
    pub warnings: Vec<String>,
}

/// A network that containers can use.
#[derive(Clone, PartialEq, Message)]
pub struct ListedNetwork {
    /// Name of the network in requests.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Data of a built-in network; `None` for a CNI network.
    #[prost(message, optional, tag = "2")]
    pub bridge: Option<ListedBridge>,
    /// Types of the CNI plugins, in the order of their configuration.
    #[prost(string, repeated, tag = "3")]
    pub plugins: Vec<String>,
    /// Versions of CNI that the configuration lists and the executor supports, ascending.
    #[prost(string, repeated, tag = "4")]
    pub versions: Vec<String>,
    /// Containers and pods on the network, ordered by id, as many as fit into the list.
    #[prost(message, repeated, tag = "5")]
    pub containers: Vec<ListedContainer>,
    /// Number of containers and pods on the network.
    #[prost(uint32, tag = "6")]
    pub container_count: u32,
    /// Descriptions of problems that prevent or limit the use of the network.
    #[prost(string, repeated, tag = "7")]
    pub warnings: Vec<String>,
}

/// Data of a built-in network.
#[derive(Clone, PartialEq, Message)]
pub struct ListedBridge {
    /// Name of the bridge's interface.
    #[prost(string, tag = "1")]
    pub interface: String,
    /// True if the interface exists now.
    #[prost(bool, tag = "2")]
    pub interface_exists: bool,
    /// Address pools of the network, in CIDR notation.
    #[prost(string, repeated, tag = "3")]
    pub subnets: Vec<String>,
    /// Host addresses on the network.
    #[prost(string, repeated, tag = "4")]
    pub gateways: Vec<String>,
    /// MTU in bytes, as configured or of the existing interface; 0 if neither is known.
    #[prost(uint32, tag = "5")]
    pub mtu: u32,
    /// Number of addresses in each pool that containers can use.
    #[prost(uint32, tag = "6")]
    pub addresses: u32,
    /// Number of leased addresses.
    #[prost(uint32, tag = "7")]
    pub leased: u32,
}

/// A container or pod on a network.
#[derive(Clone, PartialEq, Message)]
pub struct ListedContainer {
    /// Id of the container or pod.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Addresses with their prefix lengths.
    #[prost(string, repeated, tag = "2")]
    pub addresses: Vec<String>,
    /// Published ports of the container or pod.
    #[prost(message, repeated, tag = "3")]
    pub ports: Vec<ListedPort>,
}

/// A published port.
#[derive(Clone, PartialEq, Message)]
pub struct ListedPort {
    /// Host address; empty for all addresses.
    #[prost(string, tag = "1")]
    pub host_ip: String,
    /// Port on the host.
    #[prost(uint32, tag = "2")]
    pub host_port: u32,
    /// Port in the container.
    #[prost(uint32, tag = "3")]
    pub container_port: u32,
    /// Transport protocol: `tcp`, `udp` or `sctp`.
    #[prost(string, tag = "4")]
    pub protocol: String,
}
