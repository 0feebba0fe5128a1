//! Creates links, addresses and routes of a bridge network through route netlink.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use executor_core::bridge::overlap;
use executor_core::cni::{Address, INTERFACE};
use ipnet::IpNet;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkDeserializable as _,
    NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage, CacheInfo};
use netlink_packet_route::link::{
    InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoPortKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo,
    LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::network::netlink::{self, NetlinkSocket, attributes, text_of};

/// MTU if the host has no default route.
const MTU_DEFAULT: u32 = 1500;
/// Lifetime of an address that never expires.
const FOREVER: u32 = u32::MAX;
/// Type of route netlink messages that describe a route (RTM_NEWROUTE).
const NEW_ROUTE: u16 = 24;
/// Size of the header of a description of a link (`struct ifinfomsg`), in bytes.
const LINK_HEADER: usize = 16;
/// Size of the header of a description of an address (`struct ifaddrmsg`), in bytes.
const ADDRESS_HEADER: usize = 8;
/// Type of a bridge link.
const BRIDGE: &str = "bridge";
/// Routing table of the host's own addresses.
const TABLE_LOCAL: u8 = 255;

/// A link of the host.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FoundLink {
    pub index: u32,
    /// Description by which the owner recognizes the link.
    pub alias: String,
    pub is_bridge: bool,
    pub is_up: bool,
    pub mtu: u32,
}

/// Sends requests as one batch and waits until the kernel has executed all of them.
fn execute(socket: &NetlinkSocket, requests: Vec<(RouteNetlinkMessage, u16)>) -> io::Result<()> {
    let count = requests.len();
    let mut batch = Vec::new();
    for (request, flags) in requests {
        batch.extend(encode(request, NLM_F_ACK | flags));
    }
    socket.send(&batch)?;
    socket.acknowledged(count)
}

fn encode(request: RouteNetlinkMessage, flags: u16) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len().next_multiple_of(4)];
    message.serialize(&mut bytes);
    bytes
}

fn named(name: &str) -> LinkMessage {
    let mut link = LinkMessage::default();
    link.attributes.push(LinkAttribute::IfName(name.to_owned()));
    link
}

fn up(mut link: LinkMessage) -> LinkMessage {
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    link
}

/// Returns the link of this name, or `None` if it does not exist.
pub(super) fn find(name: &str) -> io::Result<Option<FoundLink>> {
    match get_link(named(name)) {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        found => found.map(Some),
    }
}

fn get_link(wanted: LinkMessage) -> io::Result<FoundLink> {
    let answer = NetlinkSocket::route()?.get(&encode(RouteNetlinkMessage::GetLink(wanted), 0))?;
    found_link(&answer).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Decodes a description of a link. `netlink-packet-route` is not used, because it decodes all of the 60 attributes and
/// formats an error message for each, which takes half a millisecond.
fn found_link(answer: &[u8]) -> Option<FoundLink> {
    let (header, described) = answer.split_first_chunk::<LINK_HEADER>()?;
    let number = |at: usize| Some(u32::from_ne_bytes(*header.get(at..)?.first_chunk()?));
    let (index, flags) = (number(4)?, LinkFlags::from_bits_retain(number(8)?));
    let is_up = flags.contains(LinkFlags::Up);
    let mut found = FoundLink { index, alias: String::new(), is_bridge: false, is_up, mtu: 0 };
    for (kind, value) in attributes(described) {
        match kind {
            libc::IFLA_IFALIAS => found.alias = text_of(value),
            libc::IFLA_MTU => found.mtu = u32::from_ne_bytes(*value.first_chunk()?),
            libc::IFLA_LINKINFO => {
                let kind = attributes(value).find(|(kind, _)| *kind == libc::IFLA_INFO_KIND);
                found.is_bridge = kind.is_some_and(|(_, kind)| text_of(kind) == BRIDGE);
            }
            _ => {}
        }
    }
    Some(found)
}

/// Creates a bridge with these host addresses, and sets it up.
///
/// # Errors
/// Returns the kernel's error if the kernel refuses the request. The bridge may then exist.
pub(super) fn make_bridge(
    name: &str,
    alias: &str,
    mtu: u32,
    (hardware, addresses): ([u8; 6], &[Address]),
) -> io::Result<u32> {
    let mut link = up(named(name));
    // Without a fixed hardware address, the address would change when ports are added.
    link.attributes.push(LinkAttribute::Address(hardware.to_vec()));
    link.attributes.extend([LinkAttribute::Mtu(mtu), LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)])]);
    let socket = NetlinkSocket::route()?;
    let requests = vec![
        (RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL),
        (RouteNetlinkMessage::SetLink(described(name, alias)), 0),
    ];
    execute(&socket, requests)?;
    let index = index(&socket, name)?;
    let addresses = addresses.iter().map(|address| add_address(index, *address, FOREVER)).collect();
    execute(&socket, addresses)?;
    Ok(index)
}

fn described(name: &str, alias: &str) -> LinkMessage {
    let mut link = named(name);
    link.attributes.push(LinkAttribute::IfAlias(alias.to_owned()));
    link
}

/// Replaces the description of a link.
///
/// # Errors
/// Returns the kernel's error if the kernel refuses the request.
pub(super) fn describe(name: &str, alias: &str) -> io::Result<()> {
    execute(&NetlinkSocket::route()?, vec![(RouteNetlinkMessage::SetLink(described(name, alias)), 0)])
}

/// Adds an address that is never chosen as a source address to a link.
///
/// # Errors
/// Returns the kernel's error if the kernel refuses the request.
pub(super) fn add_deprecated(index: u32, ip: Ipv6Addr) -> io::Result<()> {
    let address = Address { ip: ip.into(), prefix: 128 };
    execute(&NetlinkSocket::route()?, vec![add_address(index, address, 0)])
}

/// Removes a link, if it exists.
///
/// # Errors
/// Returns the kernel's error if the kernel refuses the request.
pub(super) fn remove(name: &str) -> io::Result<()> {
    match execute(&NetlinkSocket::route()?, vec![(RouteNetlinkMessage::DelLink(named(name)), 0)]) {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
        removed => removed,
    }
}

/// Makes an existing link a port of a bridge again.
///
/// # Errors
/// Returns the kernel's error if the kernel refuses the request.
pub(super) fn attach_port(name: &str, bridge: u32) -> io::Result<()> {
    let mut link = up(named(name));
    link.attributes.push(LinkAttribute::Controller(bridge));
    execute(&NetlinkSocket::route()?, vec![(RouteNetlinkMessage::SetLink(link), 0)])
}

/// A veth pair: the host's end is a port of the bridge, the other end is in the container.
pub(super) struct Pair<'a> {
    /// Name of the host's end of the pair.
    pub name: &'a str,
    /// Interface index of the bridge.
    pub bridge: u32,
    pub mtu: u32,
    /// Hardware address of the container's end.
    pub hardware: [u8; 6],
    /// Network namespace of the container.
    pub namespace: BorrowedFd<'a>,
}

impl Pair<'_> {
    /// Creates both ends, and sets the host's end up.
    ///
    /// # Errors
    /// Returns the kernel's error if the kernel refuses the request; nothing is created.
    pub(super) fn make(&self) -> io::Result<()> {
        let mut inner = named(INTERFACE); // not set up: its peer does not exist yet
        inner.attributes.extend([
            LinkAttribute::Address(self.hardware.to_vec()),
            LinkAttribute::Mtu(self.mtu),
            LinkAttribute::NetNsFd(self.namespace.as_raw_fd()),
        ]);
        let mut outer = up(named(self.name));
        outer.attributes.extend([
            LinkAttribute::Mtu(self.mtu),
            LinkAttribute::Controller(self.bridge),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(inner))),
            ]),
        ]);
        let request = RouteNetlinkMessage::NewLink(outer);
        execute(&NetlinkSocket::route()?, vec![(request, NLM_F_CREATE | NLM_F_EXCL)])
    }
}

/// Lets a bridge send frames back through the port from which they arrived (hairpin mode).
///
/// # Errors
/// Returns the kernel's error if the kernel refuses the request.
pub(super) fn enable_hairpin(name: &str) -> io::Result<()> {
    let mut port = named(name);
    port.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::PortKind(InfoPortKind::Bridge),
        LinkInfo::PortData(InfoPortData::BridgePort(vec![InfoBridgePort::HairpinMode(true)])),
    ]));
    execute(&NetlinkSocket::route()?, vec![(RouteNetlinkMessage::NewLink(port), 0)])
}

/// Sets the container's end up, and adds its addresses and default routes. `socket` must belong to the container's
/// network namespace.
///
/// # Errors
/// Returns the kernel's error if the kernel refuses the request.
pub(super) fn configure_inside(socket: &NetlinkSocket, addresses: &[Address], gateways: &[Address]) -> io::Result<()> {
    let index = index(socket, INTERFACE)?;
    let mut requests = vec![(RouteNetlinkMessage::SetLink(up(named(INTERFACE))), 0)];
    requests.extend(addresses.iter().map(|address| add_address(index, *address, FOREVER)));
    requests.extend(gateways.iter().map(|gateway| add_default_route(index, gateway.ip)));
    execute(socket, requests)
}

fn index(socket: &NetlinkSocket, name: &str) -> io::Result<u32> {
    Ok(rustix::net::netdevice::name_to_index(socket, name)?)
}

fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn add_address(index: u32, address: Address, preferred: u32) -> (RouteNetlinkMessage, u16) {
    let mut message = AddressMessage::default();
    message.header.family = family(address.ip);
    message.header.prefix_len = address.prefix;
    message.header.index = index;
    message.attributes.push(AddressAttribute::Local(address.ip));
    message.attributes.push(AddressAttribute::Address(address.ip));
    match address.ip {
        IpAddr::V4(ip) => {
            let hosts = u32::MAX.checked_shr(u32::from(address.prefix)).unwrap_or(0);
            message.attributes.push(AddressAttribute::Broadcast((u32::from(ip) | hosts).into()));
        }
        // Skip duplicate address detection, because no other host uses addresses of this pool.
        IpAddr::V6(_) => message.header.flags = AddressHeaderFlags::Nodad,
    }
    if preferred != FOREVER {
        let mut lifetimes = CacheInfo::default();
        (lifetimes.ifa_preferred, lifetimes.ifa_valid) = (preferred, FOREVER);
        message.attributes.push(AddressAttribute::CacheInfo(lifetimes));
    }
    (RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)
}

fn add_default_route(index: u32, gateway: IpAddr) -> (RouteNetlinkMessage, u16) {
    let mut message = RouteMessage::default();
    message.header.address_family = family(gateway);
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Static;
    message.header.scope = RouteScope::Universe;
    message.header.kind = RouteType::Unicast;
    message.attributes.push(RouteAttribute::Gateway(RouteAddress::from(gateway)));
    message.attributes.push(RouteAttribute::Oif(index));
    (RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE)
}

/// Returns the addresses of the host's interfaces. getifaddrs(3) would read all links, too, and the host has a link for
/// each container on a network.
///
/// # Errors
/// Returns the kernel's error if the kernel refuses the request.
pub(in crate::network) fn host_addresses() -> io::Result<Vec<IpAddr>> {
    let request = encode(RouteNetlinkMessage::GetAddress(AddressMessage::default()), NLM_F_DUMP);
    let own = |answer: Vec<u8>| {
        let described = answer.get(ADDRESS_HEADER..)?;
        let find = |wanted| attributes(described).find_map(|(kind, value)| (kind == wanted).then(|| ip(value))?);
        // On a point-to-point link, IFA_ADDRESS is the peer's address.
        find(libc::IFA_LOCAL).or_else(|| find(libc::IFA_ADDRESS))
    };
    Ok(netlink::dump(NetlinkSocket::route, &request)?.into_iter().filter_map(own).collect())
}

fn ip(octets: &[u8]) -> Option<IpAddr> {
    let ipv4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    ipv4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()
}

/// A route of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundRoute {
    pub destination: IpNet,
    /// Index of the outgoing interface, or 0.
    pub interface: u32,
}

/// Returns the host's unicast routes in all tables except the table of its own addresses.
///
/// # Errors
/// Returns the kernel's error if the kernel refuses the request.
pub(super) fn routes() -> io::Result<Vec<FoundRoute>> {
    let mut found = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        let request = encode(RouteNetlinkMessage::GetRoute(message), NLM_F_DUMP);
        for answer in netlink::dump(NetlinkSocket::route, &request)? {
            let mut header = NetlinkHeader::default();
            header.message_type = NEW_ROUTE;
            let decoded = RouteNetlinkMessage::deserialize(&header, &answer);
            let Ok(RouteNetlinkMessage::NewRoute(route)) = decoded else { continue };
            if route.header.table == TABLE_LOCAL || route.header.kind != RouteType::Unicast {
                continue;
            }
            let (mut ip, mut interface) = (unspecified(family), 0);
            for attribute in route.attributes {
                match attribute {
                    RouteAttribute::Destination(RouteAddress::Inet(to)) => ip = to.into(),
                    RouteAttribute::Destination(RouteAddress::Inet6(to)) => ip = to.into(),
                    RouteAttribute::Oif(index) => interface = index,
                    _ => {}
                }
            }
            let destination = IpNet::new(ip, route.header.destination_prefix_length);
            found.extend(destination.ok().map(|destination| FoundRoute { destination, interface }));
        }
    }
    Ok(found)
}

fn unspecified(family: AddressFamily) -> IpAddr {
    match family {
        AddressFamily::Inet => IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
        _ => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

/// Returns the first route that overlaps a pool. Default routes are ignored.
pub(super) fn overlapping(routes: &[FoundRoute], pool: IpNet) -> Option<&FoundRoute> {
    routes.iter().find(|route| route.destination.prefix_len() > 0 && overlap(route.destination, pool))
}

/// Returns the MTU of the interface of the host's default route, or `MTU_DEFAULT` if the host has no default route.
///
/// # Errors
/// Returns the kernel's error if the kernel refuses the request.
pub(super) fn uplink_mtu(routes: &[FoundRoute]) -> io::Result<u32> {
    let Some(route) = routes.iter().find(|route| route.destination.prefix_len() == 0 && route.interface != 0) else {
        return Ok(MTU_DEFAULT);
    };
    let mut wanted = LinkMessage::default();
    wanted.header.index = route.interface;
    Ok(get_link(wanted)?.mtu)
}

/// Returns the name of the interface with an index, or the index itself if the name cannot be found.
pub(super) fn interface_name(index: u32) -> String {
    let named = NetlinkSocket::route().and_then(|socket| Ok(rustix::net::netdevice::index_to_name(&socket, index)?));
    named.unwrap_or_else(|_| index.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::netlink::{attribute, nested, text};

    #[test]
    fn link_descriptions_are_decoded_or_refused() {
        let header = [0u32, 7, LinkFlags::Up.bits(), 0].map(u32::to_ne_bytes).concat();
        let mtu = attribute(libc::IFLA_MTU, &1400u32.to_ne_bytes());
        let kind = nested(libc::IFLA_LINKINFO, &[text(libc::IFLA_INFO_KIND, BRIDGE)]);
        let found = found_link(&[header.clone(), text(libc::IFLA_IFALIAS, "own"), mtu, kind].concat());
        let expected = FoundLink { index: 7, alias: "own".into(), is_bridge: true, is_up: true, mtu: 1400 };
        assert_eq!(found, Some(expected));
        assert_eq!(found_link(&header[1..]), None);
        assert_eq!(found_link(&[header, attribute(libc::IFLA_MTU, &[1])].concat()), None, "a short number");
    }

    #[test]
    fn links_are_found_by_name() {
        let found = find("lo").unwrap().unwrap();
        assert!(found.index > 0 && found.mtu > 0 && !found.is_bridge, "{found:?}");
        assert_eq!(find("executor-none").unwrap(), None);
    }

    #[test]
    fn host_addresses_include_loopback_address() {
        assert!(host_addresses().unwrap().contains(&"127.0.0.1".parse().unwrap()));
    }
}
