//! Filters packets and translates addresses of a bridge network, in nf_tables on the host. Each network has its own
//! tables, with the same name as its interface. Other tables are not changed.
//!
//! ```text
//! inet     prerouting, output   translates published ports to the container's address and port
//!          postrouting          masquerades packets that leave the network, and connections from a container to a
//!                               published port on its own network
//!          forward              accepts packets from outside only for published ports
//!          flows                records addresses with UDP flows in sets
//!          input                drops forged packets to the address that represents ::1;
//!                               drops queries to executord's name server from outside the network
//! bridge   prerouting           drops packets of a port with foreign hardware or IP addresses;
//!                               drops router advertisements;
//!                               limits the rate of datagrams from a port to the name server
//! netdev   ingress of a port    moves replies to connections from the host's ::1 to its loopback interface
//! ```
//! The kernel routes no packet of another interface to `::1`. A connection from `::1` to a published port therefore
//! gets a source address of the bridge that represents `::1`. The replies are moved to the loopback interface before
//! the bridge sees them, because the kernel tracks the connection there.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use executor_core::bridge::BridgeNetwork;
use executor_core::plan::{Protocol, PublishedPort};

use super::device_prefix;
use crate::network::attachment::BridgeAttachment;
use crate::network::name_sockets::NAMES_PORT;
use crate::network::netlink::with_host_netfilter;
use crate::network::nft::{
    self, Batch, Chain, ChainKind, ChainPolicy, ESTABLISHED, Family, Field, Hook, IPV4, IPV6, Matching, RELATED, Side,
    Step,
};

const ARP: u16 = 0x0806;
const ETHER_IPV4: u16 = 0x0800;
const ETHER_IPV6: u16 = 0x86dd;
const ICMPV6: u8 = 58;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
const MULTICAST_REPORT: u8 = 143;
/// Protocols that have ports.
const WITH_PORTS: [u8; 3] = [TCP, UDP, SCTP];
const TCP: u8 = 6;
const SCTP: u8 = 132;
/// Interface index of the loopback device.
const LOOPBACK: u32 = 1;
const LOOPBACK_NAME: &str = "lo";
/// Loopback addresses of the host.
const LOOPBACK4: (Ipv4Addr, u8) = (Ipv4Addr::new(127, 0, 0, 0), 8);
const LOOPBACK6: (Ipv6Addr, u8) = (Ipv6Addr::LOCALHOST, 128);
/// Chain priority before the address translation by bridge-nf.
const FIRST: i32 = -300;
const TRANSLATE_DESTINATION: i32 = -100;
const TRANSLATE_SOURCE: i32 = 100;
const BEFORE_TRANSLATION: i32 = 50;
const UDP: u8 = 17;

/// Maps from ports to containers, for ports on all addresses and for ports on one address.
const PORTS4: &str = "ports4";
const PORTS6: &str = "ports6";
const ADDRESS_PORTS4: &str = "address_ports4";
const ADDRESS_PORTS6: &str = "address_ports6";
/// Set of the network's bridge ports. The set also shows in this table which containers exist.
const CONTAINERS: &str = "containers";
/// Set of the bridge ports that sent queries to the name server.
const QUERIES: &str = "queries";
/// Maximum number of datagrams per second from a port to the name server. The name server's own limit is lower.
const QUERIES_A_SECOND: u64 = 1000;
const HARDWARE: &str = "hardware";
const OWN4: &str = "own4";
const OWN6: &str = "own6";
/// Sets of the addresses of containers that have opened UDP flows, and of containers that have received UDP packets.
const UDP_FROM4: &str = "udp_from4";
const UDP_FROM6: &str = "udp_from6";
const UDP_TO4: &str = "udp_to4";
const UDP_TO6: &str = "udp_to6";
const BY_PORT: &[Field] = &[Field::TransportProtocol, Field::DestinationPort];
const TO4: &[Field] = &[Field::Ipv4Destination, Field::DestinationPort];
const TO6: &[Field] = &[Field::Ipv6Destination, Field::DestinationPort];
const BY_ADDRESS4: &[Field] = &[Field::Ipv4Destination, Field::TransportProtocol, Field::DestinationPort];
const BY_ADDRESS6: &[Field] = &[Field::Ipv6Destination, Field::TransportProtocol, Field::DestinationPort];

/// Replaces the tables of a network with new tables, which contain the elements of the containers on the network.
///
/// # Errors
/// Returns the kernel's error if the kernel refuses the request; nothing is changed.
pub(super) fn replace(network: &BridgeNetwork, containers: &[BridgeAttachment]) -> io::Result<()> {
    let mut batch = Batch::new(Family::Inet, &network.interface);
    batch.delete_table();
    make_inet(network, &mut batch);
    batch.switch_to(Family::Bridge);
    batch.delete_table();
    make_bridge(network, &mut batch);
    batch.switch_to(Family::Netdev);
    batch.delete_table();
    batch.make_table();
    for container in containers {
        add_elements(container, &mut batch);
    }
    with_host_netfilter(|socket| batch.commit(socket))
}

/// Deletes the tables of a network.
///
/// # Errors
/// Returns the kernel's error if the kernel refuses the request.
pub(super) fn remove(interface: &str) -> io::Result<()> {
    let mut batch = Batch::new(Family::Inet, interface);
    for family in [Family::Inet, Family::Bridge, Family::Netdev] {
        batch.switch_to(family);
        batch.delete_table();
    }
    with_host_netfilter(|socket| batch.commit(socket))
}

/// Adds the elements of a container. The container's interface need not exist yet.
///
/// # Errors
/// Returns `NotFound` if the tables of the network do not exist.
pub(super) fn add(container: &BridgeAttachment) -> io::Result<()> {
    let mut batch = Batch::new(Family::Inet, &container.interface);
    add_elements(container, &mut batch);
    with_host_netfilter(|socket| batch.commit(socket))
}

/// Deletes the elements of a container. Its published ports are then no longer translated.
///
/// # Errors
/// Returns `NotFound` if the tables of the network do not exist.
pub(super) fn delete(container: &BridgeAttachment) -> io::Result<()> {
    let mut batch = Batch::new(Family::Inet, &container.interface);
    for (family, set, key, value) in elements(container) {
        batch.switch_to(family);
        batch.delete_element(set, &key, value.as_deref());
    }
    batch.switch_to(Family::Bridge);
    batch.delete_element(QUERIES, &padded(container.device.as_bytes(), 16), None);
    with_host_netfilter(|socket| batch.commit(socket))
}

/// Deletes the chain of [`answer_loopback`], if the chain exists. Some kernels delete the chain together with the
/// container's interface.
///
/// # Errors
/// Returns the kernel's error if the kernel refuses the request.
pub(super) fn delete_loopback_answers(container: &BridgeAttachment) -> io::Result<()> {
    if own_ipv6(container).is_none() {
        return Ok(());
    }
    let mut batch = Batch::new(Family::Netdev, &container.interface);
    batch.delete_chain(&container.device);
    with_host_netfilter(|socket| match batch.commit(socket) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        deleted => deleted,
    })
}

/// Returns two flags: whether the container with this address has opened UDP flows, and whether it has received UDP
/// packets, since the last [`delete_udp`].
///
/// # Errors
/// Returns the kernel's error if the kernel refuses the request.
pub(super) fn has_udp(interface: &str, address: IpAddr) -> io::Result<(bool, bool)> {
    let (from, to, key) = udp_sets(address);
    with_host_netfilter(|socket| {
        let has = |set| nft::has_element(socket, (Family::Inet, interface), set, &key);
        Ok((has(from)?, has(to)?))
    })
}

/// Deletes the elements that [`has_udp`] reports.
///
/// # Errors
/// Returns the kernel's error if the kernel refuses the request.
pub(super) fn delete_udp(interface: &str, address: IpAddr) -> io::Result<()> {
    let (from, to, key) = udp_sets(address);
    let mut batch = Batch::new(Family::Inet, interface);
    batch.delete_element(from, &key, None);
    batch.delete_element(to, &key, None);
    match with_host_netfilter(|socket| batch.commit(socket)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()), // the tables were deleted
        deleted => deleted,
    }
}

/// Returns the names of the sets for UDP flows from and to an address, and the address as a key.
fn udp_sets(address: IpAddr) -> (&'static str, &'static str, Vec<u8>) {
    match address {
        IpAddr::V4(ip) => (UDP_FROM4, UDP_TO4, ip.octets().to_vec()),
        IpAddr::V6(ip) => (UDP_FROM6, UDP_TO6, ip.octets().to_vec()),
    }
}

fn add_elements(container: &BridgeAttachment, batch: &mut Batch) {
    for (family, set, key, value) in elements(container) {
        batch.switch_to(family);
        batch.add_element(set, &key, value.as_deref());
    }
}

/// Moves replies to connections from `::1` to the loopback interface, for a container with published ports. The
/// container's interface must exist; the kernel deletes the chain's hook together with the interface. The chain runs
/// before the bridge checks the sender's addresses, so only frames from the container's own address are moved.
///
/// # Errors
/// Returns the kernel's error if the kernel refuses the request.
pub(super) fn answer_loopback(container: &BridgeAttachment, alias: Ipv6Addr) -> io::Result<()> {
    let Some(own) = own_ipv6(container) else { return Ok(()) };
    let is_ipv6 = |port: &&PublishedPort| port.host_ip.is_none_or(|ip| ip.is_ipv6());
    let protocols: BTreeSet<u8> = container.ports.iter().filter(is_ipv6).map(|port| number_of(port.protocol)).collect();
    if protocols.is_empty() {
        return Ok(());
    }
    let mut batch = Batch::new(Family::Netdev, &container.interface);
    batch.make_table();
    let name = &container.device;
    let (kind, policy) = (ChainKind::Filter(0), ChainPolicy::Accept);
    batch.make_chain(&Chain { name, hook: Hook::Ingress, kind, policy, device: Some(name) });
    batch.delete_rules(name);
    for protocol in protocols {
        let from_own = [Step::EtherType(ETHER_IPV6), from(own, 128)];
        let to_alias = [to(alias, 128), Step::Transport(protocol)];
        let matching = [from_own, to_alias].concat();
        batch.add_rule(name, &[&matching[..], &[Step::AddressFrameToLoopback, Step::MoveTo(LOOPBACK)]].concat());
    }
    with_host_netfilter(|socket| batch.commit(socket))
}

fn own_ipv6(container: &BridgeAttachment) -> Option<Ipv6Addr> {
    container.addresses.iter().find_map(|address| match address.ip {
        IpAddr::V4(_) => None,
        IpAddr::V6(ip) => Some(ip),
    })
}

fn make_inet(network: &BridgeNetwork, batch: &mut Batch) {
    let accept = ChainPolicy::Accept;
    batch.make_table();
    batch.make_set(CONTAINERS, &[Field::InputName], None);
    batch.make_set(PORTS4, BY_PORT, Some(TO4));
    batch.make_set(PORTS6, BY_PORT, Some(TO6));
    batch.make_set(ADDRESS_PORTS4, BY_ADDRESS4, Some(TO4));
    batch.make_set(ADDRESS_PORTS6, BY_ADDRESS6, Some(TO6));
    for (set, field) in [
        (UDP_FROM4, Field::Ipv4Source),
        (UDP_FROM6, Field::Ipv6Source),
        (UDP_TO4, Field::Ipv4Destination),
        (UDP_TO6, Field::Ipv6Destination),
    ] {
        batch.make_dynamic_set(set, &[field], network.capacity());
    }
    for (name, hook, kind) in [
        ("prerouting", Hook::Prerouting, ChainKind::Nat(TRANSLATE_DESTINATION)),
        ("output", Hook::Output, ChainKind::Nat(TRANSLATE_DESTINATION)),
        ("flows", Hook::Postrouting, ChainKind::Filter(BEFORE_TRANSLATION)),
        ("postrouting", Hook::Postrouting, ChainKind::Nat(TRANSLATE_SOURCE)),
        ("forward", Hook::Forward, ChainKind::Filter(0)),
        ("input", Hook::Input, ChainKind::Filter(0)),
    ] {
        batch.make_chain(&Chain { name, hook, kind, policy: accept, device: None });
    }
    for chain in ["prerouting", "output"] {
        for (family, fields, map) in [
            (IPV4, BY_ADDRESS4, ADDRESS_PORTS4),
            (IPV4, BY_PORT, PORTS4),
            (IPV6, BY_ADDRESS6, ADDRESS_PORTS6),
            (IPV6, BY_PORT, PORTS6),
        ] {
            let translate = Step::TranslateDestination(family, fields, map);
            batch.add_rule(chain, &[Step::Family(family), Step::IsDestinationLocal, translate]);
        }
    }
    let bridge = &network.interface;
    let to_bridge = || Step::OutputName(bridge.clone(), Matching::This);
    if let Some(alias) = network.loopback_alias() {
        let from_loopback = from(LOOPBACK6.0, LOOPBACK6.1);
        let translate = Step::TranslateSource(alias);
        batch.add_rule("postrouting", &[Step::Family(IPV6), to_bridge(), from_loopback, translate]);
        for protocol in WITH_PORTS {
            let to_alias = [Step::Family(IPV6), to(alias, 128), Step::Transport(protocol)];
            batch.add_rule("input", &[&to_alias[..], &[Step::Drop]].concat());
        }
    }
    if network.ipv4.is_some() {
        let from_loopback = from(LOOPBACK4.0, LOOPBACK4.1);
        batch.add_rule("postrouting", &[Step::Family(IPV4), to_bridge(), from_loopback, Step::Masquerade]);
    }
    for pool in network.pools() {
        let family = if pool.addr().is_ipv4() { IPV4 } else { IPV6 };
        let from_pool = from(pool.network(), pool.prefix_len());
        let (from_set, to_set, source, destination) = if pool.addr().is_ipv4() {
            (UDP_FROM4, UDP_TO4, Field::Ipv4Source, Field::Ipv4Destination)
        } else {
            (UDP_FROM6, UDP_TO6, Field::Ipv6Source, Field::Ipv6Destination)
        };
        let mut note = |steps: &[Step]| {
            batch.add_rule("flows", &[&[Step::Family(family), Step::Transport(UDP)], steps].concat());
        };
        note(&[to_bridge(), to(pool.network(), pool.prefix_len()), Step::Add(destination, to_set)]);
        for gateway in network.gateways().iter().filter(|gateway| gateway.ip.is_ipv4() == pool.addr().is_ipv4()) {
            note(&[from(gateway.ip, if gateway.ip.is_ipv4() { 32 } else { 128 }), Step::Accept]);
        }
        note(&[from_pool.clone(), Step::Add(source, from_set)]);
        let returning = [Step::Family(family), to_bridge(), from_pool.clone(), Step::IsDestinationTranslated];
        batch.add_rule("postrouting", &[&returning[..], &[Step::Masquerade]].concat());
        let leaving = Step::OutputName(bridge.clone(), Matching::Other);
        batch.add_rule("postrouting", &[Step::Family(family), from_pool, leaving, Step::Masquerade]);
    }
    for gateway in network.gateways() {
        let family = if gateway.ip.is_ipv4() { IPV4 } else { IPV6 };
        let prefix = if gateway.ip.is_ipv4() { 32 } else { 128 };
        for transport in [TCP, UDP] {
            let queries = [Step::Family(family), to(gateway.ip, prefix), Step::Transport(transport)];
            let from_elsewhere = [
                Step::Ports(NAMES_PORT, NAMES_PORT),
                Step::InputName(bridge.clone(), Matching::Other),
                Step::InputName(LOOPBACK_NAME.to_owned(), Matching::Other),
                Step::Drop,
            ];
            batch.add_rule("input", &[&queries[..], &from_elsewhere].concat());
        }
    }
    let from_bridge = Step::InputName(bridge.clone(), Matching::This);
    batch.add_rule("forward", &[from_bridge, to_bridge(), Step::Accept]);
    batch.add_rule("forward", &[to_bridge(), Step::State(ESTABLISHED | RELATED), Step::Accept]);
    batch.add_rule("forward", &[to_bridge(), Step::IsDestinationTranslated, Step::Accept]);
    batch.add_rule("forward", &[to_bridge(), Step::Drop]);
}

fn make_bridge(network: &BridgeNetwork, batch: &mut Batch) {
    const CHAIN: &str = "prerouting";
    let bridge = &network.interface;
    batch.make_table();
    batch.make_set(HARDWARE, &[Field::InputName, Field::FrameSource], None);
    batch.make_set(OWN4, &[Field::InputName, Field::Ipv4Source], None);
    batch.make_set(OWN6, &[Field::InputName, Field::Ipv6Source], None);
    batch.make_counters(QUERIES, &[Field::InputName]);
    let (kind, policy) = (ChainKind::Filter(FIRST), ChainPolicy::Accept);
    batch.make_chain(&Chain { name: CHAIN, hook: Hook::Prerouting, kind, policy, device: None });
    let mut rule = |steps: &[Step]| batch.add_rule(CHAIN, steps);
    rule(&[Step::InputPrefix(device_prefix(bridge), Matching::Other), Step::Accept]);
    rule(&[Step::Lookup(&[Field::InputName, Field::FrameSource], HARDWARE, Matching::Other), Step::Drop]);
    for gateway in network.gateways() {
        let (kind, prefix) = if gateway.ip.is_ipv4() { (ETHER_IPV4, 32) } else { (ETHER_IPV6, 128) };
        let queries = [Step::EtherType(kind), to(gateway.ip, prefix), Step::Transport(UDP)];
        let port = Step::Ports(NAMES_PORT, NAMES_PORT);
        let beyond = Step::Exceeds(&[Field::InputName], QUERIES, QUERIES_A_SECOND);
        rule(&[&queries[..], &[port, beyond, Step::Drop]].concat());
    }
    let arp = || Step::EtherType(ARP);
    let sender = Step::Lookup(&[Field::InputName, Field::ArpSenderHardware], HARDWARE, Matching::Other);
    rule(&[arp(), sender, Step::Drop]);
    rule(&[arp(), Step::Lookup(&[Field::InputName, Field::ArpSenderAddress], OWN4, Matching::This), Step::Accept]);
    let ipv4 = || Step::EtherType(ETHER_IPV4);
    rule(&[ipv4(), to(LOOPBACK4.0, LOOPBACK4.1), Step::Drop]);
    rule(&[ipv4(), Step::Lookup(&[Field::InputName, Field::Ipv4Source], OWN4, Matching::This), Step::Accept]);
    let ipv6 = || Step::EtherType(ETHER_IPV6);
    let icmp = |kind| [ipv6(), Step::Transport(ICMPV6), Step::Kind(kind)];
    rule(&[ipv6(), to(LOOPBACK6.0, LOOPBACK6.1), Step::Drop]);
    for kind in [ROUTER_ADVERTISEMENT, REDIRECT] {
        rule(&[&icmp(kind)[..], &[Step::Drop]].concat());
    }
    let target = Step::Lookup(&[Field::InputName, Field::NeighbourTarget], OWN6, Matching::Other);
    rule(&[&icmp(NEIGHBOUR_ADVERTISEMENT)[..], &[target, Step::Drop]].concat());
    rule(&[ipv6(), Step::Lookup(&[Field::InputName, Field::Ipv6Source], OWN6, Matching::This), Step::Accept]);
    // Accept packets without a source address: duplicate address detection and early membership reports.
    for kind in [NEIGHBOUR_SOLICITATION, MULTICAST_REPORT] {
        let without_source = from(Ipv6Addr::UNSPECIFIED, 128);
        rule(&[&icmp(kind)[..], &[without_source, Step::Accept]].concat());
    }
    rule(&[Step::Drop]);
}

/// Returns a step that matches packets from a network.
fn from(network: impl Into<IpAddr>, prefix: u8) -> Step {
    Step::address(Side::Source, network.into(), prefix)
}

/// Returns a step that matches packets to a network.
fn to(network: impl Into<IpAddr>, prefix: u8) -> Step {
    Step::address(Side::Destination, network.into(), prefix)
}

/// An element of a set or map: family of the table, name of the set, key and value.
type Element = (Family, &'static str, Vec<u8>, Option<Vec<u8>>);

fn elements(container: &BridgeAttachment) -> Vec<Element> {
    let name = padded(container.device.as_bytes(), 16);
    let keyed = |value: &[u8]| [&name[..], value].concat();
    let hardware = container.hardware();
    let mut all = vec![
        (Family::Inet, CONTAINERS, name.clone(), None),
        (Family::Bridge, HARDWARE, keyed(&padded(&hardware, 8)), None),
        (Family::Bridge, OWN6, keyed(&link_local(hardware).octets()), None),
    ];
    for address in &container.addresses {
        all.push(match address.ip {
            IpAddr::V4(ip) => (Family::Bridge, OWN4, keyed(&ip.octets()), None),
            IpAddr::V6(ip) => (Family::Bridge, OWN6, keyed(&ip.octets()), None),
        });
        all.extend(container.ports.iter().filter_map(|port| port_element(port, address.ip)));
    }
    all
}

/// Returns the element that translates a published port to an address of the container. Returns `None` if the address
/// families differ.
fn port_element(port: &PublishedPort, to: IpAddr) -> Option<Element> {
    let by_port = [[number_of(port.protocol), 0, 0, 0], number(port.host_port)].concat();
    let (value, by_all, by_address) = match to {
        IpAddr::V4(ip) => (ip.octets().to_vec(), PORTS4, ADDRESS_PORTS4),
        IpAddr::V6(ip) => (ip.octets().to_vec(), PORTS6, ADDRESS_PORTS6),
    };
    let (set, key) = match port.host_ip {
        None => (by_all, by_port),
        Some(ip) if ip.is_ipv4() != to.is_ipv4() => return None,
        Some(ip) if ip.is_unspecified() => (by_all, by_port),
        Some(IpAddr::V4(ip)) => (by_address, [&ip.octets()[..], &by_port].concat()),
        Some(IpAddr::V6(ip)) => (by_address, [&ip.octets()[..], &by_port].concat()),
    };
    Some((Family::Inet, set, key, Some([value, number(port.container_port).to_vec()].concat())))
}

/// Returns the number of a protocol in IP headers.
fn number_of(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => TCP,
        Protocol::Udp => UDP,
        Protocol::Sctp => SCTP,
    }
}

/// Encodes a port as a field of a key or value.
fn number(port: u16) -> [u8; 4] {
    let [high, low] = port.to_be_bytes();
    [high, low, 0, 0]
}

fn padded(bytes: &[u8], length: usize) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(length, 0);
    padded
}

/// Returns the link-local address derived from a hardware address (RFC 4291, appendix A).
fn link_local([a, b, c, d, e, f]: [u8; 6]) -> Ipv6Addr {
    let tail = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    ((0xfe80_u128 << 112) | u128::from(tail)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(host_ip: Option<&str>) -> PublishedPort {
        let host_ip = host_ip.map(|ip| ip.parse().unwrap());
        PublishedPort { host_ip, host_port: 8080, container_port: 80, protocol: Protocol::Tcp }
    }

    #[test]
    fn a_port_is_translated_within_its_family() {
        let (v4, v6) = ("10.61.0.3".parse().unwrap(), "fd00::3".parse().unwrap());
        let (_, set, key, value) = port_element(&port(None), v4).unwrap();
        assert_eq!(
            (set, key, value),
            (PORTS4, vec![6, 0, 0, 0, 0x1f, 0x90, 0, 0], Some(vec![10, 61, 0, 3, 0, 80, 0, 0]))
        );
        assert_eq!(port_element(&port(None), v6).unwrap().1, PORTS6);
        assert_eq!(port_element(&port(Some("0.0.0.0")), v4).unwrap().1, PORTS4);
        assert_eq!(port_element(&port(Some("0.0.0.0")), v6), None);
        let (_, set, key, _) = port_element(&port(Some("127.0.0.1")), v4).unwrap();
        assert_eq!((set, &key[..4]), (ADDRESS_PORTS4, &[127, 0, 0, 1][..]));
        assert_eq!(port_element(&port(Some("::1")), v6).unwrap().1, ADDRESS_PORTS6);
    }

    #[test]
    fn link_local_address_derives_from_hardware_address() {
        assert_eq!(link_local([0x02, 0x65, 10, 61, 0, 3]), "fe80::65:aff:fe3d:3".parse::<Ipv6Addr>().unwrap());
    }
}
