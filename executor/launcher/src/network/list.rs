//! Lists the networks that containers can request, with the containers on each network.
//!
//! Input: the configuration of built-in networks, the operator's CNI files, and the records of containers. Output: a
//! memory file, because the list does not fit into a packet. Containers are listed up to [`LISTED_CONTAINERS_BYTES`];
//! the remaining containers are only counted.

use std::collections::BTreeMap;
use std::path::Path;

use executor_core::bridge::BridgeNetwork;
use executor_core::cni::{CniNetwork, Version};
use executor_core::ident::ContainerId;
use executor_core::plan::PublishedPort;
use executor_core::protocol::{
    CNI_NETWORKS_MAX, LISTED_CONTAINERS_BYTES, ListNetworks, ListedContainer, ListedNetwork, ListedPort,
    NETWORK_NAMES_MAX, NETWORK_WARNING_LENGTH, NETWORK_WARNINGS_MAX, NetworkList, Reason, Refused,
};
use executor_sys::memfile::MemFile;
use prost::Message as _;

use super::bridge;
use super::cni::config;
use super::store::{self, Stored};
use crate::errors::{failed, plain};
use crate::host::Host;

/// Kind of a network. A container's record identifies its network by kind and name, because a new configuration can
/// define a network of another kind with the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Driver {
    Bridge,
    Cni,
}

/// A container on a network.
struct ContainerOnNetwork {
    network: (String, Driver),
    container: ListedContainer,
}

/// Returns the requested networks as a [`NetworkList`] in a memory file. Names of unknown networks are ignored.
///
/// # Errors
/// Returns a refusal if there are too many names, or if memory is short.
pub(crate) fn list(host: &Host, request: &ListNetworks) -> Result<MemFile, Refused> {
    if request.names.len() > NETWORK_NAMES_MAX {
        let why = format!("names: {} names; at most {NETWORK_NAMES_MAX} are allowed", request.names.len());
        return Err(Refused::new(Reason::Invalid, why));
    }
    let mut lists = Listing::new(&request.names);
    for network in host.networks.values() {
        lists.add_bridge(network, || bridge::describe(host, network));
    }
    lists.add_cni(&host.policy.cni_conf_dir);
    for id in store::ids(host) {
        match store::read(host, id.as_str()) {
            Ok(Some(stored)) => lists.containers.push(container_on_network(&id, &stored)),
            Ok(None) => {} // detached meanwhile
            Err(error) => lists.warnings.push(format!("cannot read the network record of {id}: {}", plain(&error))),
        }
    }
    MemFile::new("networks", &[&lists.finish().encode_to_vec()])
        .map_err(|error| failed("cannot store the list of networks", &error))
}

/// A list of networks under construction.
struct Listing<'a> {
    /// Names of the networks to list; if empty, all networks.
    names: &'a [String],
    networks: BTreeMap<(String, Driver), ListedNetwork>,
    containers: Vec<ContainerOnNetwork>,
    warnings: Vec<String>,
}

impl<'a> Listing<'a> {
    fn new(names: &'a [String]) -> Self {
        Self { names, networks: BTreeMap::new(), containers: Vec::new(), warnings: Vec::new() }
    }

    fn has(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|wanted| wanted == name)
    }

    /// Adds a built-in network to the list.
    fn add_bridge(
        &mut self,
        network: &BridgeNetwork,
        describe: impl FnOnce() -> (executor_core::protocol::ListedBridge, Vec<String>),
    ) {
        if !self.has(&network.name) {
            return;
        }
        let (bridge, warnings) = describe();
        let listed =
            ListedNetwork { name: network.name.clone(), bridge: Some(bridge), warnings, ..ListedNetwork::default() };
        self.networks.insert((network.name.clone(), Driver::Bridge), listed);
    }

    /// Adds the networks of the CNI files in a directory, after the built-in networks.
    fn add_cni(&mut self, dir: &Path) {
        let files = match config::read_all(dir) {
            Ok(files) => files,
            Err(error) => return self.warnings.push(format!("{}: {}", dir.display(), plain(&error))),
        };
        let (mut found, mut left_out) = (BTreeMap::new(), 0_usize);
        for (file, network) in files {
            let at = dir.join(&file).display().to_string();
            let network = match network {
                Ok(network) => network,
                Err(why) => {
                    self.warnings.push(format!("{at}: {why}"));
                    continue;
                }
            };
            if self.networks.contains_key(&(network.name.clone(), Driver::Bridge)) {
                self.warnings.push(format!("{at}: not used, because network `{}` is built in", network.name));
            } else if let Some(first) = found.get(&network.name) {
                self.warnings.push(format!("{at}: not used, because {first} defines network `{}`", network.name));
            } else if self.has(&network.name) && found.len() < CNI_NETWORKS_MAX {
                let listed = cni_network(&network);
                self.networks.insert((network.name.clone(), Driver::Cni), listed);
                found.insert(network.name, file);
            } else if self.has(&network.name) {
                left_out += 1;
            }
        }
        if left_out > 0 {
            let why = format!("{}: {left_out} networks were omitted; the maximum is {CNI_NETWORKS_MAX}", dir.display());
            self.warnings.insert(0, why);
        }
    }

    /// Adds all containers to the networks in the list, and returns the list.
    fn finish(mut self) -> NetworkList {
        self.containers.sort_by(|one, other| one.container.id.cmp(&other.container.id));
        let mut bytes = 0;
        for ContainerOnNetwork { network, container } in std::mem::take(&mut self.containers) {
            if !self.has(&network.0) {
                continue;
            }
            let listed = self.networks.entry(network).or_insert_with_key(|(name, _)| ListedNetwork {
                name: name.clone(),
                warnings: vec![
                    "the configuration of this network was removed, is invalid, or was omitted from this list; \
                     the containers stay attached"
                        .into(),
                ],
                ..ListedNetwork::default()
            });
            listed.container_count += 1;
            bytes += container.encoded_len();
            if bytes <= LISTED_CONTAINERS_BYTES {
                listed.containers.push(container);
            }
        }
        let networks = self.networks.into_iter().map(|((_, driver), mut network)| {
            if driver == Driver::Bridge {
                network.bridge.get_or_insert_default();
            }
            ListedNetwork { warnings: bounded(network.warnings), ..network }
        });
        NetworkList { networks: networks.collect(), warnings: bounded(self.warnings) }
    }
}

fn cni_network(network: &CniNetwork) -> ListedNetwork {
    ListedNetwork {
        name: network.name.clone(),
        plugins: network.plugins.iter().map(|plugin| plugin.kind.clone()).collect(),
        versions: network.versions.iter().map(|version| Version::name(*version).to_owned()).collect(),
        ..ListedNetwork::default()
    }
}

fn container_on_network(id: &ContainerId, stored: &Stored) -> ContainerOnNetwork {
    let driver = match stored {
        Stored::Bridge(_) => Driver::Bridge,
        Stored::Cni(_) => Driver::Cni,
    };
    // A container has no addresses until its plugins have responded.
    let addresses = stored.addresses().unwrap_or_default().own;
    let container = ListedContainer {
        id: id.to_string(),
        addresses: addresses.iter().map(ToString::to_string).collect(),
        ports: stored.asked().published().map(listed_port).collect(),
    };
    ContainerOnNetwork { network: (stored.network().to_owned(), driver), container }
}

fn listed_port(port: PublishedPort) -> ListedPort {
    ListedPort {
        host_ip: port.host_ip.map(|ip| ip.to_string()).unwrap_or_default(),
        host_port: port.host_port.into(),
        container_port: port.container_port.into(),
        protocol: port.protocol.name().to_owned(),
    }
}

/// Limits the number and the length of warnings.
fn bounded(mut warnings: Vec<String>) -> Vec<String> {
    let count = warnings.len();
    if count > NETWORK_WARNINGS_MAX {
        warnings.truncate(NETWORK_WARNINGS_MAX - 1);
        warnings.push(format!("{} more warnings are omitted", count - warnings.len()));
    }
    warnings.into_iter().map(|warning| shortened(warning, NETWORK_WARNING_LENGTH)).collect()
}

/// Truncates a string to this many characters. A truncated string ends with `...`.
pub(super) fn shortened(text: String, length: usize) -> String {
    match text.char_indices().nth(length) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use executor_core::bridge::NetworksSettings;
    use executor_core::protocol::ListedBridge;

    use super::*;

    fn conf(name: &str, kinds: &[&str]) -> String {
        let plugins: Vec<_> = kinds.iter().map(|kind| serde_json::json!({"type": kind})).collect();
        serde_json::json!({"cniVersions": ["0.4.0", "1.0.0"], "name": name, "plugins": plugins}).to_string()
    }

    fn with_bridge(names: &[String]) -> Listing<'_> {
        let mut listing = Listing::new(names);
        for network in NetworksSettings::default().check().unwrap().values() {
            listing.add_bridge(network, || (ListedBridge { mtu: 1400, ..ListedBridge::default() }, Vec::new()));
        }
        listing
    }

    fn on(network: &str, driver: Driver, id: &str, addresses: usize) -> ContainerOnNetwork {
        let addresses = vec!["10.61.0.9/16".to_owned(); addresses];
        let container = ListedContainer { id: id.into(), addresses, ports: Vec::new() };
        ContainerOnNetwork { network: (network.into(), driver), container }
    }

    fn shown(list: &NetworkList) -> Vec<(&str, bool, u32)> {
        let shown = |network: &'_ ListedNetwork| (network.bridge.is_some(), network.container_count);
        list.networks.iter().map(|network| (&*network.name, shown(network).0, shown(network).1)).collect()
    }

    #[test]
    fn list_has_built_in_and_cni_networks() {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("10-web.conflist", conf("web", &["bridge", "portmap"])),
            ("20-web.conflist", conf("web", &["other"])),
            ("30-own.conflist", conf("bridge", &["bridge"])),
            ("40-broken.conf", "{".to_owned()),
        ] {
            fs::write(dir.path().join(file), text).unwrap();
        }
        let mut listing = with_bridge(&[]);
        listing.add_cni(dir.path());
        listing.containers.push(on("web", Driver::Cni, "b", 1));
        listing.containers.push(on("bridge", Driver::Bridge, "a", 2));
        listing.containers.push(on("gone", Driver::Cni, "c", 0));
        let list = listing.finish();
        assert_eq!(shown(&list), [("bridge", true, 1), ("gone", false, 1), ("web", false, 1)]);
        let web = &list.networks[2];
        assert_eq!(
            (&web.plugins[..], &web.versions[..]),
            (&["bridge".into(), "portmap".into()][..], &["0.4.0".into(), "1.0.0".into()][..])
        );
        assert!(list.networks[1].warnings[0].contains("the configuration of this network was removed"), "{list:?}");
        let expected =
            ["20-web.conflist: not used", "30-own.conflist: not used", "40-broken.conf: is not a JSON object"];
        assert_eq!(list.warnings.len(), expected.len(), "{list:?}");
        for (warning, part) in list.warnings.iter().zip(expected) {
            assert!(warning.contains(part), "{warning}");
        }
    }

    #[test]
    fn list_by_name_omits_other_networks() {
        let names = ["bridge".to_owned(), "nope".to_owned()];
        let mut listing = with_bridge(&names);
        listing.containers.extend([on("bridge", Driver::Bridge, "a", 1), on("web", Driver::Cni, "b", 1)]);
        assert_eq!(shown(&listing.finish()), [("bridge", true, 1)]);
    }

    #[test]
    fn removed_bridge_is_distinct_from_cni() {
        let mut listing = Listing::new(&[]);
        listing.containers.extend([on("x", Driver::Cni, "a", 1), on("x", Driver::Bridge, "b", 1)]);
        assert_eq!(shown(&listing.finish()), [("x", true, 1), ("x", false, 1)]);
    }

    #[test]
    fn containers_beyond_the_limit_are_counted() {
        let mut listing = with_bridge(&[]);
        listing.containers.extend((0..5000).map(|number| on("bridge", Driver::Bridge, &format!("c{number:04}"), 64)));
        let list = listing.finish();
        let network = &list.networks[0];
        assert_eq!(network.container_count, 5000);
        assert!((1000..5000).contains(&network.containers.len()), "{}", network.containers.len());
        assert!(list.encoded_len() < LISTED_CONTAINERS_BYTES + (64 << 10));
    }

    #[test]
    fn warnings_are_bounded_in_number_and_length() {
        let warnings = bounded(vec!["ä".repeat(1000); 80]);
        assert_eq!(warnings.len(), NETWORK_WARNINGS_MAX);
        assert_eq!(warnings[0].chars().count(), NETWORK_WARNING_LENGTH + 3);
        assert_eq!(warnings[NETWORK_WARNINGS_MAX - 1], "31 more warnings are omitted");
    }
}
