//! Checks the configuration of the built-in bridge networks (`[networks.NAME]`), and computes the addresses in their
//! pools.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::Deserialize;

use crate::cni::{Address, is_name};
use crate::settings::Unusable;

/// Name of the default built-in network.
pub const BRIDGE: &str = "bridge";
/// Maximum number of built-in networks.
pub const NETWORKS_MAX: usize = 64;
/// Maximum length of the name of a built-in network, in bytes.
const NAME_MAX: usize = 64;
/// Maximum length of an interface name, in bytes (the kernel's limit).
const INTERFACE_MAX: usize = 15;
/// Prefix of the default interface name of a bridge.
const INTERFACE_PREFIX: &str = "ex-";
/// Minimum MTU, in bytes: the minimum of IPv6.
const MTU_MIN: u32 = 1280;
const MTU_MAX: u32 = 65_535;
/// Allowed prefix lengths of the pools, in bits. The smallest IPv6 pool has as many addresses as the largest IPv4 pool.
const IPV4_PREFIXES: std::ops::RangeInclusive<u8> = 12..=29;
const IPV6_PREFIXES: std::ops::RangeInclusive<u8> = 32..=108;
/// Number (host part) of the gateway's address in each pool.
const GATEWAY: u32 = 1;
/// Number of the IPv6 address that represents the host's `::1` in connections to published ports.
const LOOPBACK: u32 = 2;
/// Lowest number of a container address.
const FIRST: u32 = 3;
/// Highest number of a container address in a network without an IPv4 pool.
const IPV6_ONLY_LAST: u32 = 65_533;

/// Sections `[networks.NAME]`, by name. Without such a section, there is one network, `bridge`, with the defaults.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub struct NetworksSettings(BTreeMap<String, BridgeSettings>);

/// Section `[networks.NAME]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
pub struct BridgeSettings {
    /// Name of the bridge's interface; `ex-NAME` if empty.
    pub interface: String,
    /// IPv4 pool, for example `10.61.0.0/16`; no IPv4 if empty.
    pub ipv4: String,
    /// IPv6 pool, for example `fd00:61::/64`; no IPv6 if empty.
    pub ipv6: String,
    /// MTU in bytes; 0 = the MTU of the interface of the host's default route.
    pub mtu: u32,
}

impl Default for NetworksSettings {
    fn default() -> Self {
        let bridge = BridgeSettings {
            ipv4: "10.61.0.0/16".into(),
            ipv6: "fd65:7865:6375:61::/64".into(),
            ..BridgeSettings::default()
        };
        Self([(BRIDGE.to_owned(), bridge)].into())
    }
}

/// A built-in bridge network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeNetwork {
    /// Name of the network in requests.
    pub name: String,
    /// Name of the bridge's interface.
    pub interface: String,
    /// IPv4 pool of the containers' addresses, if the network has one.
    pub ipv4: Option<Ipv4Net>,
    /// IPv6 pool of the containers' addresses, if the network has one.
    pub ipv6: Option<Ipv6Net>,
    /// MTU in bytes; `None` = the MTU of the interface of the host's default route.
    pub mtu: Option<u32>,
}

impl NetworksSettings {
    /// Returns the networks, by name.
    ///
    /// # Errors
    /// Returns all invalid values if there are any.
    pub fn check(&self) -> Result<BTreeMap<String, BridgeNetwork>, Vec<Unusable>> {
        let mut faults = Vec::new();
        if self.0.len() > NETWORKS_MAX {
            let value = format!("{} networks", self.0.len());
            faults.push(Unusable { key: "networks".into(), value, why: format!("at most {NETWORKS_MAX} are allowed") });
        }
        let mut networks: BTreeMap<String, BridgeNetwork> = BTreeMap::new();
        for (name, settings) in self.0.iter().take(NETWORKS_MAX) {
            let network = settings.network(name, &mut faults);
            for other in networks.values() {
                check_pair(&network, other, &mut faults);
            }
            networks.insert(name.clone(), network);
        }
        if faults.is_empty() { Ok(networks) } else { Err(faults) }
    }
}

/// Checks that two networks share neither an interface nor an address.
fn check_pair(network: &BridgeNetwork, other: &BridgeNetwork, faults: &mut Vec<Unusable>) {
    let mut fault = |key: &str, value: String| {
        let key = format!("networks.{}.{key}", network.name);
        faults.push(Unusable { key, value, why: format!("is in use by networks.{}", other.name) });
    };
    if network.interface == other.interface {
        fault("interface", network.interface.clone());
    }
    for pool in network.pools() {
        if let Some(shared) = other.pools().find(|shared| overlap(pool, *shared)) {
            let key = if pool.addr().is_ipv4() { "ipv4" } else { "ipv6" };
            fault(key, format!("{pool} overlaps {shared}"));
        }
    }
}

/// Returns the built-in network for requests without a network name. This network is used if no CNI network is
/// configured.
pub fn default_network(networks: &BTreeMap<String, BridgeNetwork>) -> Option<&BridgeNetwork> {
    networks.get(BRIDGE).or_else(|| networks.values().next())
}

/// Returns true if two networks have an address in common.
pub fn overlap(one: IpNet, other: IpNet) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}

impl BridgeSettings {
    fn network(&self, name: &str, faults: &mut Vec<Unusable>) -> BridgeNetwork {
        let mut fault = |key: &str, value: String, why: String| {
            let key = if key.is_empty() { format!("networks.{name}") } else { format!("networks.{name}.{key}") };
            faults.push(Unusable { key, value, why });
        };
        if name.len() > NAME_MAX || !is_name(name) {
            let why =
                format!("use at most {NAME_MAX} letters, digits, `_`, `.` and `-`, and begin with a letter or digit");
            fault("", name.to_owned(), why);
        }
        let mut interface = self.interface.clone();
        if interface.is_empty() {
            interface = format!("{INTERFACE_PREFIX}{name}");
        }
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if interface.len() > INTERFACE_MAX || !interface.bytes().all(is_valid) || interface.starts_with('.') {
            let why = format!("use at most {INTERFACE_MAX} letters, digits, `_`, `.` and `-`, and no leading `.`");
            fault("interface", interface.clone(), why);
        }
        let ipv4 = (!self.ipv4.is_empty()).then(|| parse_ipv4(&self.ipv4)).transpose().unwrap_or_else(|why| {
            fault("ipv4", self.ipv4.clone(), why);
            None
        });
        let ipv6 = (!self.ipv6.is_empty()).then(|| parse_ipv6(&self.ipv6)).transpose().unwrap_or_else(|why| {
            fault("ipv6", self.ipv6.clone(), why);
            None
        });
        if self.ipv4.is_empty() && self.ipv6.is_empty() {
            fault("", name.to_owned(), "set ipv4, ipv6 or both, for example ipv4 = \"10.62.0.0/16\"".into());
        }
        if self.mtu != 0 && !(MTU_MIN..=MTU_MAX).contains(&self.mtu) {
            let why = format!("use {MTU_MIN} to {MTU_MAX}, or 0 for the MTU of the host's default route");
            fault("mtu", self.mtu.to_string(), why);
        }
        BridgeNetwork { name: name.to_owned(), interface, ipv4, ipv6, mtu: (self.mtu != 0).then_some(self.mtu) }
    }
}

fn parse_ipv4(text: &str) -> Result<Ipv4Net, String> {
    let net: Ipv4Net = text.parse().map_err(|_| "use an IPv4 network, for example 10.62.0.0/16".to_owned())?;
    check_prefix(net.prefix_len(), &IPV4_PREFIXES)?;
    if net.addr() != net.network() {
        return Err(format!("has host bits set; use {}", net.trunc()));
    }
    let ip = net.network();
    if ip.is_loopback() || ip.is_multicast() || ip.is_link_local() || ip.is_unspecified() || ip.octets()[0] >= 240 {
        return Err("must not be a loopback, multicast, link-local, unspecified or reserved range".into());
    }
    Ok(net)
}

fn parse_ipv6(text: &str) -> Result<Ipv6Net, String> {
    let net: Ipv6Net = text.parse().map_err(|_| "use an IPv6 network, for example fd00:62::/64".to_owned())?;
    check_prefix(net.prefix_len(), &IPV6_PREFIXES)?;
    if net.addr() != net.network() {
        return Err(format!("has host bits set; use {}", net.trunc()));
    }
    let ip = net.network();
    if ip.is_multicast() || ip.is_unicast_link_local() || ip.is_unspecified() || ip.to_ipv4_mapped().is_some() {
        return Err("must not be a multicast, link-local, unspecified or IPv4-mapped range".into());
    }
    Ok(net)
}

fn check_prefix(prefix: u8, allowed: &std::ops::RangeInclusive<u8>) -> Result<(), String> {
    if allowed.contains(&prefix) {
        return Ok(());
    }
    Err(format!("has the prefix length {prefix}; use {} to {}", allowed.start(), allowed.end()))
}

impl BridgeNetwork {
    /// Returns the pools of both families.
    pub fn pools(&self) -> impl Iterator<Item = IpNet> {
        self.ipv4.map(IpNet::V4).into_iter().chain(self.ipv6.map(IpNet::V6))
    }

    /// Returns the numbers that a container's addresses can have in the pools.
    pub fn numbers(&self) -> std::ops::RangeInclusive<u32> {
        // The last address of an IPv4 network is its broadcast address.
        let last = self.ipv4.map_or(IPV6_ONLY_LAST, |net| (1u32 << (32 - net.prefix_len())) - 2);
        FIRST..=last
    }

    /// Returns the maximum number of containers that can have addresses at the same time.
    pub fn capacity(&self) -> u32 {
        let numbers = self.numbers();
        numbers.end() - numbers.start() + 1
    }

    /// Returns the address with this number in each pool.
    pub fn addresses(&self, number: u32) -> Vec<Address> {
        let ipv4 = self.ipv4.map(|net| Address { ip: ipv4_at(net, number).into(), prefix: net.prefix_len() });
        let ipv6 = self.ipv6.map(|net| Address { ip: ipv6_at(net, number).into(), prefix: net.prefix_len() });
        ipv4.into_iter().chain(ipv6).collect()
    }

    /// Returns the number of an address; `None` if no pool contains the address or the number exceeds 32 bits.
    pub fn number_of(&self, ip: IpAddr) -> Option<u32> {
        match ip {
            IpAddr::V4(ip) => {
                let net = self.ipv4.filter(|net| net.contains(&ip))?;
                Some(u32::from(ip) - u32::from(net.network()))
            }
            IpAddr::V6(ip) => {
                let net = self.ipv6.filter(|net| net.contains(&ip))?;
                u32::try_from(u128::from(ip) - u128::from(net.network())).ok()
            }
        }
    }

    /// Returns the host's addresses on this network. The containers use these addresses as gateways.
    pub fn gateways(&self) -> Vec<Address> {
        self.addresses(GATEWAY)
    }

    /// Returns the address that represents the host's `::1` in connections to published ports.
    pub fn loopback_alias(&self) -> Option<Ipv6Addr> {
        self.ipv6.map(|net| ipv6_at(net, LOOPBACK))
    }
}

fn ipv4_at(net: Ipv4Net, number: u32) -> Ipv4Addr {
    (u32::from(net.network()) | number).into()
}

fn ipv6_at(net: Ipv6Net, number: u32) -> Ipv6Addr {
    (u128::from(net.network()) | u128::from(number)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<BTreeMap<String, BridgeNetwork>, Vec<String>> {
        let settings: NetworksSettings = toml::from_str(text).unwrap();
        settings.check().map_err(|faults| {
            faults.into_iter().map(|Unusable { key, value, why }| format!("{key} = {value}: {why}")).collect()
        })
    }

    #[test]
    fn default_is_one_dual_stack_network() {
        let networks = NetworksSettings::default().check().unwrap();
        let bridge = &networks[BRIDGE];
        assert_eq!((networks.len(), &*bridge.interface, bridge.mtu), (1, "ex-bridge", None));
        let shown = |addresses: Vec<Address>| addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(shown(bridge.gateways()), ["10.61.0.1/16", "fd65:7865:6375:61::1/64"]);
        assert_eq!(shown(bridge.addresses(0x0102)), ["10.61.1.2/16", "fd65:7865:6375:61::102/64"]);
        assert_eq!(bridge.numbers(), 3..=65_534);
        for address in bridge.addresses(65_534) {
            assert_eq!(bridge.number_of(address.ip), Some(65_534));
        }
        assert_eq!(bridge.number_of("10.62.0.1".parse().unwrap()), None);
    }

    #[test]
    fn small_pool_excludes_broadcast_address() {
        let networks = checked("[a]\nipv4 = '192.0.2.8/29'").unwrap();
        assert_eq!(networks["a"].numbers(), 3..=6);
        let last = networks["a"].addresses(6);
        assert_eq!((last.len(), last[0].to_string()), (1, "192.0.2.14/29".into()));
        assert_eq!(networks["a"].loopback_alias(), None);
    }

    #[test]
    fn every_fault_is_reported_with_its_key() {
        let faults = checked(
            "[a]\n[b]\nipv4 = '10.1.0.1/16'\nipv6 = 'fe80::/64'\nmtu = 1000\n['-c']\nipv4 = '10.0.0.0/8'\n\
             [a-name-that-is-long]\nipv6 = 'x'",
        )
        .unwrap_err();
        assert_eq!(
            faults,
            [
                "networks.-c = -c: use at most 64 letters, digits, `_`, `.` and `-`, and begin with a letter or digit",
                "networks.-c.ipv4 = 10.0.0.0/8: has the prefix length 8; use 12 to 29",
                "networks.a = a: set ipv4, ipv6 or both, for example ipv4 = \"10.62.0.0/16\"",
                "networks.a-name-that-is-long.interface = ex-a-name-that-is-long: use at most 15 letters, digits, `_`, \
                 `.` and `-`, and no leading `.`",
                "networks.a-name-that-is-long.ipv6 = x: use an IPv6 network, for example fd00:62::/64",
                "networks.b.ipv4 = 10.1.0.1/16: has host bits set; use 10.1.0.0/16",
                "networks.b.ipv6 = fe80::/64: must not be a multicast, link-local, unspecified or IPv4-mapped range",
                "networks.b.mtu = 1000: use 1280 to 65535, or 0 for the MTU of the host's default route",
            ]
        );
    }

    #[test]
    fn networks_share_no_interface_and_no_address() {
        let faults = checked("[a]\ninterface = 'x'\nipv4 = '10.1.0.0/16'\n[b]\ninterface = 'x'\nipv4 = '10.1.2.0/24'");
        assert_eq!(
            faults.unwrap_err(),
            [
                "networks.b.interface = x: is in use by networks.a",
                "networks.b.ipv4 = 10.1.2.0/24 overlaps 10.1.0.0/16: is in use by networks.a",
            ]
        );
    }
}
