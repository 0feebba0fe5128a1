//! Defines the network settings of a container: kind of network, published ports, egress, and names.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{CniOptions, EgressRule};

/// Kind of network of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// A separate namespace with loopback up.
    None,
    /// The host's network.
    Host,
    /// A separate namespace on a network of the node: a built-in network or a CNI network.
    Cni,
    /// An existing namespace, by a path that the operator allows.
    Path,
}

/// A transport protocol of a published port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// Returns the name as in CNI's portmap plugin.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }

    /// Parses the name as in CNI's portmap plugin; `None` if it is unknown.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Tcp, Self::Udp, Self::Sctp].into_iter().find(|protocol| protocol.name() == name)
    }
}

/// A host port that is forwarded to a container port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedPort {
    /// Host address; all addresses if unset.
    pub host_ip: Option<IpAddr>,
    /// Host port, 1 to 65535.
    pub host_port: u16,
    /// Container port, 1 to 65535.
    pub container_port: u16,
    /// Transport protocol of the port.
    pub protocol: Protocol,
}

impl PublishedPort {
    /// Formats the port on the host: `127.0.0.1:8080/tcp`, or `8080/tcp` on all addresses.
    pub fn on_host(&self) -> String {
        let port = format!("{}/{}", self.host_port, self.protocol.name());
        match self.host_ip {
            Some(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
            Some(ip) => format!("{ip}:{port}"),
            None => port,
        }
    }
}

/// All network settings except the kind of network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Connectivity {
    /// Name of the network. When empty, the first CNI network is used or, if there are no CNI networks, the default
    /// built-in network.
    pub network_name: String,
    /// Published ports of the container.
    pub ports: Vec<PublishedPort>,
    /// True if the container may open connections to destinations outside of its network.
    pub egress: bool,
    /// Destinations outside of the container's network to which the container may open connections; every destination
    /// if empty.
    pub egress_rules: Vec<EgressRule>,
    /// Host name; derived from the container's id if empty.
    pub hostname: String,
    /// Additional names on a built-in network, besides the id and the host name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub network_aliases: Vec<String>,
    /// Addresses of name servers. If empty, the name servers of the CNI result are used.
    pub dns_servers: Vec<IpAddr>,
    /// Search domains of the resolver.
    pub dns_searches: Vec<String>,
    /// Options of the resolver, as in resolv.conf(5).
    pub dns_options: Vec<String>,
    /// True if executord answers DNS queries on the gateways of the container's built-in network.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub name_server: bool,
    /// Path of the network namespace to join; empty for another kind of network.
    #[serde(skip_serializing_if = "is_empty")]
    pub network_namespace: PathBuf,
    /// Settings for the CNI plugins of a pod's network. Unset in the plans of the pod's members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cni: Option<CniOptions>,
}

impl Connectivity {
    /// Returns the settings that the plans of a pod's members repeat.
    pub fn for_members(&self) -> Self {
        // Only the pod itself is attached to the network.
        Self { cni: None, ..self.clone() }
    }
}

fn is_empty(path: &std::path::Path) -> bool {
    path.as_os_str().is_empty()
}
