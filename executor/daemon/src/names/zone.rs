//! Names and addresses of the running containers of each network.
//!
//! An id belongs to exactly one container. Host names and aliases are chosen freely, and several containers can have
//! the same name, so ids take precedence. Members of a pod have the pod's address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use executor_core::bridge::BridgeNetwork;
use executor_core::cni::Address;
use executor_core::ident::ContainerId;
use executor_core::plan::Plan;

use super::limits::Quota;
use crate::model::container::Handle;

/// Maximum number of addresses of each family in a response.
const ADDRESSES_MAX: usize = 64;

/// A container or pod that can send queries.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) handle: Arc<Handle>,
    pub(super) addresses: Vec<Address>,
    pub(super) quota: Arc<Quota>,
}

/// Running containers of all networks, by name and by address.
#[derive(Debug, Default)]
pub(super) struct Zone {
    version: Option<u64>,
    networks: HashMap<String, NetworkZone>,
}

/// Running containers of one network, by name and by address.
#[derive(Debug, Default)]
struct NetworkZone {
    clients: HashMap<IpAddr, Arc<Client>>,
    ids: HashMap<String, Vec<IpAddr>>,
    shared: HashMap<String, Vec<IpAddr>>,
}

/// Returns the names of a container or pod, in lower case: the id, the host name if one was requested, and the aliases.
/// A member of a pod has only its id.
pub(super) fn names(plan: &Plan) -> Vec<String> {
    let mut names = vec![plan.id.as_str()];
    if plan.member_of().is_none() {
        names.extend(Some(&*plan.connectivity.hostname).filter(|name| !name.is_empty()));
        names.extend(plan.connectivity.network_aliases.iter().map(String::as_str));
    }
    let mut lower: Vec<String> = Vec::new();
    for name in names.into_iter().map(str::to_ascii_lowercase) {
        if !lower.contains(&name) {
            lower.push(name);
        }
    }
    lower
}

impl Zone {
    /// Builds the zone for a version of the registry. Quotas are taken over from `before`.
    pub(super) fn new<'a>(
        version: u64,
        handles: &[Arc<Handle>],
        before: &Self,
        network: impl Fn(&str) -> Option<&'a BridgeNetwork>,
    ) -> Self {
        let mut quotas: HashMap<&ContainerId, &Arc<Quota>> = HashMap::new();
        for client in before.networks.values().flat_map(|zone| zone.clients.values()) {
            quotas.insert(client.handle.id(), &client.quota);
        }
        let mut zone = Self { version: Some(version), networks: HashMap::new() };
        for handle in handles {
            let Some(facts) = handle.facts() else { continue };
            let Some(attached) = facts.network() else { continue };
            let Some(network) = network(&attached.network) else { continue };
            let addresses = &attached.addresses;
            // The container may be on a CNI network that had the same name.
            if addresses.iter().any(|address| network.number_of(address.ip).is_none()) {
                continue;
            }
            let inside = zone.networks.entry(attached.network.clone()).or_default();
            let ips = || addresses.iter().map(|address| address.ip);
            if facts.plan.makes_network() {
                let quota = quotas.get(handle.id()).map_or_else(Arc::default, |quota| Arc::clone(quota));
                let client = Client { handle: Arc::clone(handle), addresses: addresses.clone(), quota };
                let client = Arc::new(client);
                inside.clients.extend(ips().map(|ip| (ip, Arc::clone(&client))));
            }
            for (at, name) in names(&facts.plan).into_iter().enumerate() {
                let named = if at == 0 { &mut inside.ids } else { &mut inside.shared };
                named.entry(name).or_default().extend(ips());
            }
        }
        zone
    }

    /// Returns true if the zone was built from this version of the registry.
    pub(super) fn is_version(&self, version: u64) -> bool {
        self.version == Some(version)
    }

    /// Returns true if a network has containers.
    pub(super) fn has_clients(&self, network: &str) -> bool {
        self.networks.get(network).is_some_and(|zone| !zone.clients.is_empty())
    }

    /// Returns the container that has this address on a network.
    pub(super) fn client(&self, network: &str, address: IpAddr) -> Option<Arc<Client>> {
        self.networks.get(network)?.clients.get(&address).cloned()
    }

    /// Returns the id of the container that has this address on a network.
    pub(super) fn id(&self, network: &str, address: IpAddr) -> Option<&ContainerId> {
        Some(self.networks.get(network)?.clients.get(&address)?.handle.id())
    }

    /// Returns the addresses of a name in lower case, or `None` if no container of the network has the name. `turn`
    /// rotates the order of the addresses.
    pub(super) fn addresses(&self, network: &str, name: &str, turn: usize) -> Option<Vec<IpAddr>> {
        let zone = self.networks.get(network)?;
        let found = zone.ids.get(name).or_else(|| zone.shared.get(name))?;
        let family = |is_ipv4: bool| {
            let all: Vec<IpAddr> = found.iter().filter(|ip| ip.is_ipv4() == is_ipv4).copied().collect();
            let first = turn % all.len().max(1);
            let turned: Vec<IpAddr> =
                all.iter().cycle().skip(first).take(all.len().min(ADDRESSES_MAX)).copied().collect();
            turned
        };
        Some([family(true), family(false)].concat())
    }
}

#[cfg(test)]
mod tests {
    use executor_core::bridge::{BRIDGE, NetworksSettings};
    use executor_core::lifecycle::State;
    use executor_core::plan::{Connectivity, Network, PodRole};
    use executor_core::record::{Attached, PreparedContainer};
    use executor_core::validate::{Draft, Policy, validate};
    use tokio::sync::watch;

    use super::*;
    use crate::model::status::ContainerStatus;

    fn networks() -> std::collections::BTreeMap<String, BridgeNetwork> {
        NetworksSettings::default().check().unwrap()
    }

    /// Returns a running container with the address that has this number in its network.
    fn handle(id: &str, number: u32, aliases: &[&str], pod: Option<PodRole>) -> Arc<Handle> {
        let connectivity = Connectivity {
            hostname: if pod.is_some() { String::new() } else { "Shared.Host".into() },
            network_aliases: aliases.iter().map(|&alias| alias.to_owned()).collect(),
            ..Connectivity::default()
        };
        let draft = Draft { id, path: "/x", network: Some(Network::Cni), connectivity, ..Draft::default() };
        let mut plan = validate(&draft, &Policy::default()).unwrap();
        plan.pod = pod;
        let addresses = networks()[BRIDGE].addresses(number);
        let network = Some(Attached { network: BRIDGE.into(), addresses });
        let facts = ContainerStatus::admitted(plan, String::new(), crate::now(), String::new());
        let prepared = Some(PreparedContainer { network, ..prepared() });
        Arc::new(Handle::new(ContainerStatus { prepared, state: State::Running, ..facts }, watch::Sender::new(0)))
    }

    fn prepared() -> PreparedContainer {
        let text = r#"{"init": {"pid": 1, "start_time": 1, "boot_id": ""}, "user": {"uid": 0, "gid": 0, "groups": [], "home": "/"},
                       "mounts": [], "volume": null, "nofile": 1, "warnings": [], "at": 0}"#;
        serde_json::from_str(text).unwrap()
    }

    fn zone(handles: &[Arc<Handle>], before: &Zone) -> Zone {
        let networks = networks();
        Zone::new(1, handles, before, |name| networks.get(name))
    }

    fn found(zone: &Zone, name: &str, turn: usize) -> Option<String> {
        let addresses = zone.addresses(BRIDGE, name, turn)?;
        Some(addresses.iter().filter(|ip| ip.is_ipv4()).map(ToString::to_string).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn id_precedes_shared_names() {
        let handles = [handle("One", 3, &["db"], None), handle("two", 4, &["DB", "one"], None)];
        let zone = zone(&handles, &Zone::default());
        assert_eq!(found(&zone, "one", 0).unwrap(), "10.61.0.3");
        assert_eq!(found(&zone, "db", 0).unwrap(), "10.61.0.3 10.61.0.4");
        assert_eq!(found(&zone, "db", 5).unwrap(), "10.61.0.4 10.61.0.3");
        assert_eq!(found(&zone, "shared.host", 0).unwrap(), "10.61.0.3 10.61.0.4");
        assert_eq!(found(&zone, "host", 0), None);
        assert_eq!(zone.addresses("blue", "one", 0), None);
        assert_eq!(zone.id(BRIDGE, "10.61.0.4".parse().unwrap()).unwrap().as_str(), "two");
    }

    #[test]
    fn member_has_the_address_of_its_pod() {
        let pod = handle("pod", 3, &["shop"], Some(PodRole::Holder { share_processes: false }));
        let role = PodRole::Member { pod: "pod".parse().unwrap(), share_processes: false };
        let member = handle("member", 3, &["shop"], Some(role));
        let zone = zone(&[member, pod], &Zone::default());
        for name in ["pod", "member", "shop"] {
            assert_eq!(found(&zone, name, 0).as_deref(), Some("10.61.0.3"), "{name}");
        }
        assert_eq!(zone.id(BRIDGE, "10.61.0.3".parse().unwrap()).unwrap().as_str(), "pod", "members send as the pod");
    }

    #[test]
    fn answers_are_bounded_and_quotas_are_kept() {
        let handles: Vec<_> = (0..100).map(|at| handle(&format!("c{at}"), 3 + at, &["all"], None)).collect();
        let first = zone(&handles, &Zone::default());
        assert_eq!(first.addresses(BRIDGE, "all", 7).unwrap().len(), 2 * ADDRESSES_MAX);
        let second = zone(&handles, &first);
        let quota = |zone: &Zone| Arc::as_ptr(&zone.client(BRIDGE, "10.61.0.9".parse().unwrap()).unwrap().quota);
        assert_eq!(quota(&first), quota(&second));
    }
}
