//! Network settings of a container.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::EgressRule;

/// Kind of network of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// A namespace of its own with loopback up.
    None,
    /// The host's.
    Host,
    /// A namespace of its own that CNI plugins connect to a network of the operator's.
    Cni,
    /// A namespace that another program made, by a path that the operator allows.
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
    /// Returns the name as CNI's portmap plugin spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

/// A port of the host that leads to one of the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedPort {
    /// Address of the host; every address if there is none.
    pub host_ip: Option<IpAddr>,
    /// Port of the host.
    pub host_port: u16,
    /// Port of the container.
    pub container_port: u16,
    /// Protocol.
    pub protocol: Protocol,
}

impl PublishedPort {
    /// The port on the host as people write it: `127.0.0.1:8080/tcp`, `8080/tcp` on every address.
    pub fn on_host(&self) -> String {
        let port = format!("{}/{}", self.host_port, self.protocol.name());
        match self.host_ip {
            Some(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
            Some(ip) => format!("{ip}:{port}"),
            None => port,
        }
    }
}

/// Everything of the network but which one it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Connectivity {
    /// Name of one of the operator's CNI networks; the first one when empty.
    pub network_name: String,
    /// Ports of the host that lead to it.
    pub ports: Vec<PublishedPort>,
    /// True when the container may open connections to outside of its network.
    pub egress: bool,
    /// The only destinations outside of its network that it may open connections to; every destination when empty.
    pub egress_rules: Vec<EgressRule>,
    /// Host name; made from the container's id when empty.
    pub hostname: String,
    /// Addresses of name servers; the network's own answer where there are none.
    pub dns_servers: Vec<IpAddr>,
    /// Domains to search.
    pub dns_searches: Vec<String>,
    /// Options of the resolver.
    pub dns_options: Vec<String>,
    /// Path of the network namespace to join; empty for another kind of network.
    #[serde(skip_serializing_if = "is_empty")]
    pub network_namespace: PathBuf,
}

fn is_empty(path: &std::path::Path) -> bool {
    path.as_os_str().is_empty()
}
