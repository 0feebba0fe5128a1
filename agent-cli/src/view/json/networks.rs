//! A container's networks, ports and addresses, and the networks of a node.

use executor_cli_kit::failure::Failure;
use executor_client::v1;
use serde::Serialize;

use crate::view::human::word;

/// Network settings of a container, as requested.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Connectivity {
    network_name: String,
    network_namespace: String,
    ports: Vec<Port>,
    egress: bool,
    egress_rules: Vec<EgressRule>,
    hostname: String,
    network_aliases: Vec<String>,
    dns: Dns,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Port {
    host_ip: String,
    host_port: u32,
    container_port: u32,
    protocol: String,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct EgressRule {
    protocol: String,
    destinations: Vec<String>,
    ports: Vec<PortRange>,
    icmp_type: Option<i32>,
    icmp_code: Option<i32>,
    log: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct PortRange {
    first: u32,
    last: u32,
}

/// The document of `egress`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Egress {
    id: String,
    egress: bool,
    egress_rules: Vec<EgressRule>,
    egress_generation: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Dns {
    servers: Vec<String>,
    searches: Vec<String>,
    options: Vec<String>,
}

/// Network of a container, as set up.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Status {
    name: String,
    addresses: Vec<String>,
    ports: Vec<Port>,
}

/// A network of a node.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct NodeNetwork {
    name: String,
    driver: String,
    interface: String,
    interface_exists: bool,
    subnets: Vec<String>,
    gateways: Vec<String>,
    mtu: Option<u32>,
    addresses: u32,
    leased_addresses: u32,
    plugins: Vec<String>,
    versions: Vec<String>,
    containers: Vec<NetworkContainer>,
    container_count: u32,
    warnings: Vec<String>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct NetworkContainer {
    id: String,
    names: Vec<String>,
    addresses: Vec<String>,
    ports: Vec<Port>,
}

/// Result for one of several networks.
#[derive(Serialize)]
pub(crate) struct TriedNetwork {
    name: String,
    network: Option<NodeNetwork>,
    error: Option<String>,
}

impl TriedNetwork {
    /// Creates the result for the requested name.
    pub(crate) fn new(name: &str, done: &Result<v1::NodeNetwork, Failure>) -> Self {
        Self {
            name: name.to_owned(),
            network: done.as_ref().ok().map(NodeNetwork::from),
            error: done.as_ref().err().map(Failure::describe),
        }
    }
}

impl From<&v1::NodeNetwork> for NodeNetwork {
    fn from(network: &v1::NodeNetwork) -> Self {
        let container = |container: &v1::NetworkContainer| NetworkContainer {
            id: container.id.clone(),
            names: container.names.clone(),
            addresses: container.addresses.clone(),
            ports: container.ports.iter().map(Port::from).collect(),
        };
        Self {
            name: network.name.clone(),
            driver: network.driver.clone(),
            interface: network.interface.clone(),
            interface_exists: network.interface_exists,
            subnets: network.subnets.clone(),
            gateways: network.gateways.clone(),
            mtu: Some(network.mtu).filter(|mtu| *mtu != 0),
            addresses: network.addresses,
            leased_addresses: network.leased_addresses,
            plugins: network.plugins.clone(),
            versions: network.versions.clone(),
            containers: network.containers.iter().map(container).collect(),
            container_count: network.container_count,
            warnings: network.warnings.clone(),
        }
    }
}

impl From<&v1::ContainerSpec> for Connectivity {
    fn from(spec: &v1::ContainerSpec) -> Self {
        let dns = spec.dns.clone().unwrap_or_default();
        Self {
            network_name: spec.network_name.clone(),
            network_namespace: spec.network_namespace.clone(),
            ports: spec.ports.iter().map(Port::from).collect(),
            egress: spec.egress,
            egress_rules: spec.egress_rules.iter().map(EgressRule::from).collect(),
            hostname: spec.hostname.clone(),
            network_aliases: spec.network_aliases.clone(),
            dns: Dns { servers: dns.servers, searches: dns.searches, options: dns.options },
        }
    }
}

impl From<&v1::PodSpec> for Connectivity {
    fn from(spec: &v1::PodSpec) -> Self {
        let dns = spec.dns.clone().unwrap_or_default();
        Self {
            network_name: spec.network_name.clone(),
            network_namespace: spec.network_namespace.clone(),
            ports: spec.ports.iter().map(Port::from).collect(),
            egress: spec.egress,
            egress_rules: spec.egress_rules.iter().map(EgressRule::from).collect(),
            hostname: spec.hostname.clone(),
            network_aliases: spec.network_aliases.clone(),
            dns: Dns { servers: dns.servers, searches: dns.searches, options: dns.options },
        }
    }
}

impl From<&v1::Container> for Egress {
    fn from(container: &v1::Container) -> Self {
        let spec = container.spec.clone().unwrap_or_default();
        Self {
            id: container.id.clone(),
            egress: spec.egress,
            egress_rules: spec.egress_rules.iter().map(EgressRule::from).collect(),
            egress_generation: container.egress_generation,
        }
    }
}

impl From<&v1::EgressRule> for EgressRule {
    fn from(rule: &v1::EgressRule) -> Self {
        Self {
            protocol: word(rule.protocol().as_str_name(), "PROTOCOL_"),
            destinations: rule.destinations.clone(),
            ports: rule.ports.iter().map(|range| PortRange { first: range.first, last: range.last }).collect(),
            icmp_type: rule.icmp_type,
            icmp_code: rule.icmp_code,
            log: rule.log,
        }
    }
}

impl From<&v1::NetworkStatus> for Status {
    fn from(status: &v1::NetworkStatus) -> Self {
        Self {
            name: status.name.clone(),
            addresses: status.addresses.clone(),
            ports: status.ports.iter().map(Port::from).collect(),
        }
    }
}

impl From<&v1::PortMapping> for Port {
    fn from(port: &v1::PortMapping) -> Self {
        Self {
            host_ip: port.host_ip.clone(),
            host_port: port.host_port,
            container_port: port.container_port,
            protocol: word(port.protocol().as_str_name(), "PROTOCOL_"),
        }
    }
}

/// Results of the checks of a network.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct NetworkChecks {
    checks: Vec<NetworkCheck>,
    unchecked: u32,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct NetworkCheck {
    id: String,
    outcome: String,
    message: String,
}

impl From<&v1::CheckNetworkResponse> for NetworkChecks {
    fn from(checked: &v1::CheckNetworkResponse) -> Self {
        let check = |check: &v1::NetworkCheck| NetworkCheck {
            id: check.id.clone(),
            outcome: word(check.outcome().as_str_name(), "OUTCOME_"),
            message: check.message.clone(),
        };
        Self { checks: checked.checks.iter().map(check).collect(), unchecked: checked.unchecked }
    }
}
