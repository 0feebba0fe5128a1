//! ListNetworks and CheckNetwork: list and check the networks that the node's launcher manages.

use executor_core::cni::is_name;
use executor_core::plan::Protocol;
use executor_core::protocol::{
    AttachmentCheck, CheckOutcome, ListedContainer, ListedNetwork, ListedPort, NETWORK_NAMES_MAX, NetworkList,
};
use executor_core::validate::{FieldFault, Violation, ViolationReason};
use executor_proto::v1;

use super::convert;
use crate::access::Client;
use crate::access::rules::Requester;
use crate::api_error::ApiError;
use crate::node::Node;

/// Maximum length of an invalid name in an error message, in characters.
const NAME_SHOWN: usize = 80;

/// Returns the networks with these names, or all if `names` is empty.
///
/// # Errors
/// Returns an error if a name is invalid or unknown, or if the launcher does not respond.
pub(super) async fn list(node: &Node, names: Vec<String>) -> Result<v1::ListNetworksResponse, ApiError> {
    check_names(&names)?;
    let list = node.launcher.networks(names.clone()).await?;
    let mut answer = answer(&names, list)?;
    for network in &mut answer.networks {
        network.warnings.extend(node.names.trouble(&network.name));
        for container in &mut network.containers {
            container.names = node.names.names(&network.name, &container.id);
        }
    }
    Ok(answer)
}

/// Checks a network, and returns the results.
///
/// # Errors
/// Returns an error if the name is invalid, the caller's previous check is running, or the launcher refuses.
pub(super) async fn check(node: &Node, name: String, client: &Client) -> Result<v1::CheckNetworkResponse, ApiError> {
    if !is_name(&name) {
        return Err(ApiError::invalid_field("name", invalid_name(&name)));
    }
    let _running = node.network_checks.enter(Requester::new(client).owner())?;
    let checked = node.launcher.check_network(name).await?;
    let checks = checked.checks.into_iter().map(network_check).collect();
    Ok(v1::CheckNetworkResponse { checks, unchecked: checked.unchecked })
}

fn network_check(check: AttachmentCheck) -> v1::NetworkCheck {
    use v1::network_check::Outcome;
    let outcome = match check.outcome() {
        CheckOutcome::Unknown => Outcome::Unspecified,
        CheckOutcome::Connected => Outcome::Connected,
        CheckOutcome::Broken => Outcome::Broken,
        CheckOutcome::Skipped => Outcome::Skipped,
    };
    v1::NetworkCheck { id: check.id, outcome: outcome.into(), message: check.message }
}

fn check_names(names: &[String]) -> Result<(), ApiError> {
    if names.len() > NETWORK_NAMES_MAX {
        let why = format!("has {} entries; at most {NETWORK_NAMES_MAX} are allowed", names.len());
        return Err(ApiError::invalid_field("names", ViolationReason::TooMany.because(why)));
    }
    let invalid = names.iter().enumerate().filter(|(_, name)| !is_name(name));
    let invalid: Vec<Violation> =
        invalid.map(|(index, name)| Violation::new(format!("names[{index}]"), invalid_name(name))).collect();
    if invalid.is_empty() { Ok(()) } else { Err(ApiError::invalid(invalid)) }
}

fn invalid_name(name: &str) -> FieldFault {
    let shown: String = name.chars().take(NAME_SHOWN).collect();
    let why = format!(
        "{shown:?} is not a valid network name: use at most 128 letters, digits, `_`, `.` and `-`, and begin with a \
         letter or digit"
    );
    ViolationReason::InvalidFormat.because(why)
}

fn answer(names: &[String], list: NetworkList) -> Result<v1::ListNetworksResponse, ApiError> {
    let is_missing = |name: &&String| !list.networks.iter().any(|network| network.name == **name);
    if let Some(index) = names.iter().position(|name| is_missing(&name)) {
        let mut why = format!("there is no network `{}`", names[index]);
        // A warning may be about the file that should define the network.
        if let Some(first) = list.warnings.first() {
            let others = list.warnings.len() - 1;
            let more = if others == 0 { String::new() } else { format!(" (further warnings: {others})") };
            why = format!("{why}; warning: {first}{more}");
        }
        return Err(ApiError::not_found(format!("names[{index}]"), why));
    }
    Ok(v1::ListNetworksResponse { networks: list.networks.into_iter().map(network).collect(), warnings: list.warnings })
}

fn network(listed: ListedNetwork) -> v1::NodeNetwork {
    let driver = if listed.bridge.is_some() { "bridge" } else { "cni" };
    let bridge = listed.bridge.unwrap_or_default();
    v1::NodeNetwork {
        name: listed.name,
        driver: driver.to_owned(),
        interface: bridge.interface,
        interface_exists: bridge.interface_exists,
        subnets: bridge.subnets,
        gateways: bridge.gateways,
        mtu: bridge.mtu,
        addresses: bridge.addresses,
        leased_addresses: bridge.leased,
        plugins: listed.plugins,
        versions: listed.versions,
        containers: listed.containers.into_iter().map(container).collect(),
        container_count: listed.container_count,
        warnings: listed.warnings,
    }
}

fn container(listed: ListedContainer) -> v1::NetworkContainer {
    let ports = listed.ports.into_iter().filter_map(port).collect();
    v1::NetworkContainer { id: listed.id, addresses: listed.addresses, ports, ..v1::NetworkContainer::default() }
}

/// Converts a port; `None` if this version does not support the protocol.
fn port(listed: ListedPort) -> Option<v1::PortMapping> {
    Some(v1::PortMapping {
        host_ip: listed.host_ip,
        host_port: listed.host_port,
        container_port: listed.container_port,
        protocol: convert::protocol(Protocol::from_name(&listed.protocol)?).into(),
    })
}

#[cfg(test)]
mod tests {
    use executor_core::protocol::ListedBridge;

    use super::*;
    use crate::api_error::Kind;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn listed(warnings: &[&str]) -> NetworkList {
        let bridge = ListedNetwork {
            name: "bridge".into(),
            bridge: Some(ListedBridge { leased: 2, ..ListedBridge::default() }),
            containers: vec![ListedContainer {
                id: "a".into(),
                addresses: names(&["10.61.0.9/16"]),
                ports: ["udp", "new"].map(|name| ListedPort { protocol: name.into(), ..ListedPort::default() }).into(),
            }],
            ..ListedNetwork::default()
        };
        let cni = ListedNetwork { name: "web".into(), plugins: names(&["ptp"]), ..ListedNetwork::default() };
        NetworkList { networks: vec![bridge, cni], warnings: names(warnings) }
    }

    #[test]
    fn answer_has_every_listed_network() {
        let answer = answer(&names(&["web", "bridge"]), listed(&["x"])).unwrap();
        let [bridge, cni] = &answer.networks[..] else { panic!("{answer:?}") };
        assert_eq!((&*bridge.driver, bridge.leased_addresses, &*cni.driver), ("bridge", 2, "cni"));
        let ports = &bridge.containers[0].ports;
        assert_eq!((ports.len(), ports[0].protocol()), (1, v1::port_mapping::Protocol::Udp));
        assert_eq!((&cni.plugins[..], &answer.warnings[..]), (&names(&["ptp"])[..], &names(&["x"])[..]));
    }

    #[test]
    fn unknown_name_is_not_found() {
        let missing = answer(&names(&["web", "nope"]), listed(&["a.conf: is empty", "b.conf"])).unwrap_err();
        assert_eq!((missing.kind, &*missing.violations[0].field), (Kind::NotFound, "names[1]"));
        let expected = "there is no network `nope`; warning: a.conf: is empty (further warnings: 1)";
        assert_eq!(missing.message, expected);
    }

    #[test]
    fn names_are_checked() {
        assert!(check_names(&names(&["a-b.c"])).is_ok());
        let invalid = check_names(&names(&["a", "", "../x"])).unwrap_err();
        let fields: Vec<_> = invalid.violations.iter().map(|violation| &*violation.field).collect();
        assert_eq!(fields, ["names[1]", "names[2]"]);
        let many = check_names(&vec!["a".to_owned(); NETWORK_NAMES_MAX + 1]).unwrap_err();
        assert!(many.message.contains("51 entries; at most 50"), "{many}");
    }
}
