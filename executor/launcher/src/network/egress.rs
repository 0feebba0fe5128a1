//! Limits connections beyond the container's own network. If the request has no egress, all connections are blocked; if
//! the request has rules, only connections that the rules allow are possible.
//!
//! An nf_tables table in the container's network namespace is created before any process of the container runs. The
//! table accepts neighbour discovery, packets of established connections, and packets to the networks of the
//! container's own addresses. The host is not a peer, so the table blocks packets to the gateways and the host's own
//! addresses in those networks. Rules of the request come first, so a rule may allow the host or a name server on a
//! gateway. Rules for executord's name server come first too; the name server forwards a query only if the request's
//! rules allow it. The whole table is replaced in one transaction, so each packet is matched against either the old or
//! the new rules. Changing the table needs CAP_NET_ADMIN over the namespace, and bypassing it needs CAP_NET_RAW. A
//! container without egress or with egress rules gets neither capability (see the validation in core).

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use executor_core::cni::{Address, Addresses};
use executor_core::ident::ContainerId;
use executor_core::plan::{AddressRange, EgressProtocol, EgressRule, Plan};
use executor_sys::process;

use super::bridge::host_addresses;
use super::name_sockets::NAMES_PORT;
use super::nft::{self, ESTABLISHED, Hook, IPV4, IPV6, RELATED, Side, Step};

const TABLE: &str = "executor-egress";
/// Interface index of the loopback device in every network namespace.
const LOOPBACK: u32 = 1;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// Maximum number of kernel log lines per second for each nf_tables rule that logs.
const LOGGED_A_SECOND: u64 = 10;
/// ICMPv6 types that a link needs: router solicitation, neighbour solicitation and advertisement, multicast membership.
const NEIGHBOURS: [u8; 4] = [133, 135, 136, 143];

/// Applies the egress settings of a plan to a container. `init` is the pidfd of the container's init.
///
/// # Errors
/// Returns an error if the kernel has no nf_tables or refuses the rules, and changes nothing.
pub(super) fn limit(init: BorrowedFd<'_>, plan: &Plan, addresses: &Addresses) -> io::Result<()> {
    let (asked, id) = (&plan.connectivity, &plan.id);
    let is_open = asked.egress && asked.egress_rules.is_empty();
    let rules = if is_open {
        vec![vec![Step::Accept]]
    } else {
        let mut hosts = addresses.gateways.clone();
        hosts.extend(own_addresses(host_addresses()?, &addresses.own));
        let allowed = asked.egress_rules.iter().flat_map(|rule| allowed(rule, &log_prefix(id)));
        let names = addresses.name_servers.iter().flat_map(|server| name_server(*server));
        rules(&addresses.own, &hosts, names.chain(allowed).collect())
    };
    // The rules apply to the container's own connections. The container may forward packets only if egress is
    // unrestricted.
    let forwarded = if is_open { rules.clone() } else { Vec::new() };
    process::within_network(init, || {
        let chains = |rules| [("output", Hook::Output, rules), ("forward", Hook::Forward, forwarded.clone())];
        // If the kernel does not support reject, drop packets without a reply.
        nft::replace_rules(TABLE, &chains(rules.clone())).or_else(|_| {
            let quiet = rules.iter().filter(|rule| !rule.contains(&Step::Reject)).cloned().collect();
            nft::replace_rules(TABLE, &chains(quiet))
        })
    })
}

/// Returns the host's addresses in the container's networks.
fn own_addresses(host: Vec<IpAddr>, own: &[Address]) -> impl Iterator<Item = IpAddr> {
    host.into_iter().filter(|ip| own.iter().any(|address| address.network_has(*ip)))
}

/// Returns the prefix of a kernel log line. The kernel accepts 127 bytes.
fn log_prefix(id: &ContainerId) -> String {
    const ID_MAX: usize = 100;
    let id = id.as_str();
    format!("{TABLE} {}: ", &id[..id.len().min(ID_MAX)])
}

/// Returns the nf_tables rules for a rule of the request.
fn allowed(rule: &EgressRule, log_prefix: &str) -> Vec<Vec<Step>> {
    let kind = match rule.protocol {
        EgressProtocol::All => None,
        EgressProtocol::Tcp => Some(TCP),
        EgressProtocol::Udp => Some(UDP),
        EgressProtocol::Icmp => Some(ICMP),
        EgressProtocol::Icmpv6 => Some(ICMPV6),
    };
    let mut transports: Vec<Vec<Step>> = vec![kind.map(Step::Transport).into_iter().collect()];
    if let Some(icmp) = rule.icmp {
        transports[0].push(Step::Kind(icmp.kind));
        transports[0].extend(icmp.code.map(Step::Code));
    }
    if !rule.ports.is_empty() {
        let ports = rule.ports.iter().map(|ports| Step::Ports(ports.first, ports.last));
        transports = ports.map(|ports| [&transports[0][..], &[ports]].concat()).collect();
    }
    let mut rules = Vec::new();
    for range in &rule.destinations {
        for transport in &transports {
            let matching = [&destination(range)[..], transport].concat();
            if rule.log {
                let log = [Step::Limit(LOGGED_A_SECOND), Step::Log(log_prefix.to_owned())];
                rules.push([&matching[..], &log].concat());
            }
            rules.push([&matching[..], &[Step::Accept]].concat());
        }
    }
    rules
}

/// Returns the rules for queries to executord's name server.
fn name_server(server: IpAddr) -> [Vec<Step>; 2] {
    [UDP, TCP].map(|transport| {
        let ports = [Step::Transport(transport), Step::Ports(NAMES_PORT, NAMES_PORT), Step::Accept];
        [&destination(&AddressRange { first: server, last: server })[..], &ports].concat()
    })
}

/// Returns the steps that match these destination addresses.
fn destination(range: &AddressRange) -> Vec<Step> {
    match (range.first, range.last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            let (first, last) = (first.octets().to_vec(), last.octets().to_vec());
            vec![Step::Family(IPV4), Step::HeaderRange { offset: Side::Destination.offset(true), first, last }]
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => {
            let (first, last) = (first.octets().to_vec(), last.octets().to_vec());
            vec![Step::Family(IPV6), Step::HeaderRange { offset: Side::Destination.offset(false), first, last }]
        }
        // Validation refuses such a range. These steps match no packet.
        _ => vec![Step::Family(IPV4), Step::Family(IPV6)],
    }
}

/// Returns all rules in order. `allowed` contains the rules of the request.
fn rules(own: &[Address], hosts: &[IpAddr], allowed: Vec<Vec<Step>>) -> Vec<Vec<Step>> {
    let mut rules =
        vec![vec![Step::Interface(LOOPBACK), Step::Accept], vec![Step::State(ESTABLISHED | RELATED), Step::Accept]];
    let neighbour = |kind| vec![Step::Family(IPV6), Step::Transport(ICMPV6), Step::Kind(kind), Step::Accept];
    rules.extend(NEIGHBOURS.map(neighbour));
    rules.extend(allowed);
    for host in hosts {
        let whole = Address { ip: *host, prefix: if host.is_ipv4() { 32 } else { 128 } };
        rules.push(to(whole, Step::Reject));
        rules.push(to(whole, Step::Drop));
    }
    for address in own {
        if let Some(everybody) = broadcast(*address) {
            rules.push(to(everybody, Step::Drop)); // the host receives broadcasts too
        }
        rules.push(to(*address, Step::Accept));
    }
    rules.push(vec![Step::Reject]);
    rules
}

/// Returns a rule for packets to the network of an address.
fn to(network: Address, then: Step) -> Vec<Step> {
    let family = if network.ip.is_ipv4() { IPV4 } else { IPV6 };
    vec![Step::Family(family), Step::address(Side::Destination, network.ip, network.prefix), then]
}

/// Returns the broadcast address of a network, if it has one.
fn broadcast(network: Address) -> Option<Address> {
    match network.ip {
        IpAddr::V4(ip) if network.prefix < 31 => {
            let last = u32::from(ip) | (u32::MAX >> network.prefix);
            Some(Address { ip: IpAddr::V4(last.into()), prefix: 32 })
        }
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr as _;

    use executor_core::plan::{IcmpMessages, PortRange};

    use super::*;

    fn address(ip: &str, prefix: u8) -> Address {
        Address { ip: ip.parse().unwrap(), prefix }
    }

    #[test]
    fn network_mask_has_prefix_bits() {
        let mask = |ip, prefix| match &to(address(ip, prefix), Step::Accept)[1] {
            Step::Header { mask, .. } => mask.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(mask("10.1.0.5", 16), [255, 255, 0, 0]);
        assert_eq!(mask("10.1.0.5", 20), [255, 255, 240, 0]);
        assert_eq!(mask("10.1.0.5", 32), [255; 4]);
        assert_eq!(mask("10.1.0.5", 0), [0; 4]);
        assert_eq!(mask("fd00::5", 64), [[255; 8], [0; 8]].concat());
        assert_eq!(broadcast(address("10.1.0.5", 16)), Some(address("10.1.255.255", 32)));
        assert_eq!(broadcast(address("10.1.0.5", 32)), None);
        assert_eq!(broadcast(address("fd00::5", 64)), None);
    }

    /// The host's addresses are rejected before their network is allowed, and all other packets are rejected last.
    #[test]
    fn host_addresses_are_rejected_before_network() {
        let own = [address("10.1.0.5", 16)];
        let hosts = ["192.0.2.1", "10.1.0.1"].map(|ip| ip.parse().unwrap()).to_vec();
        let near: Vec<IpAddr> = own_addresses(hosts, &own).collect();
        assert_eq!(near, ["10.1.0.1".parse::<IpAddr>().unwrap()]);
        let rules = rules(&own, &near, Vec::new());
        let at = |wanted: &[Step]| rules.iter().position(|rule| rule == wanted).unwrap();
        assert!(at(&to(address("10.1.0.1", 32), Step::Drop)) < at(&to(own[0], Step::Accept)));
        assert_eq!(rules.last().unwrap(), &[Step::Reject]);
    }

    #[test]
    fn queries_reach_only_the_name_server() {
        let server: IpAddr = "10.1.0.1".parse().unwrap();
        let own = [address("10.1.0.5", 16)];
        let rules = rules(&own, &[server], name_server(server).to_vec());
        let queries = |transport| {
            let range = Step::HeaderRange { offset: 16, first: vec![10, 1, 0, 1], last: vec![10, 1, 0, 1] };
            vec![Step::Family(IPV4), range, Step::Transport(transport), Step::Ports(53, 53), Step::Accept]
        };
        let at = |wanted: &[Step]| rules.iter().position(|rule| rule == wanted).unwrap();
        let refused = at(&to(address("10.1.0.1", 32), Step::Reject));
        assert!(at(&queries(UDP)) < refused && at(&queries(TCP)) < refused);
    }

    #[test]
    fn each_destination_and_port_range_is_rule() {
        let rule = |protocol, destinations: &[&str], ports: &[(u16, u16)], icmp, log| {
            let ports = ports.iter().map(|(first, last)| PortRange { first: *first, last: *last }).collect();
            let destinations = destinations.iter().map(|text| text.parse().unwrap()).collect();
            allowed(&EgressRule { protocol, destinations, ports, icmp, log }, "p")
        };
        let two = rule(EgressProtocol::Tcp, &["192.0.2.0/24", "::1"], &[(80, 80), (443, 444)], None, false);
        assert_eq!(two.len(), 4);
        let range = Step::HeaderRange { offset: 16, first: vec![192, 0, 2, 0], last: vec![192, 0, 2, 255] };
        assert_eq!(two[1], [Step::Family(IPV4), range, Step::Transport(6), Step::Ports(443, 444), Step::Accept]);
        assert_eq!(two[2][0], Step::Family(IPV6));
        let icmp = Some(IcmpMessages { kind: 8, code: Some(0) });
        let ping = rule(EgressProtocol::Icmp, &["192.0.2.1"], &[], icmp, true);
        assert_eq!(
            ping[0][2..],
            [Step::Transport(1), Step::Kind(8), Step::Code(0), Step::Limit(10), Step::Log("p".into())]
        );
        assert_eq!(ping[1][2..], [Step::Transport(1), Step::Kind(8), Step::Code(0), Step::Accept]);
        assert_eq!(rule(EgressProtocol::All, &["::/0"], &[], None, false)[0][2..], [Step::Accept]);
        let long = ContainerId::from_str(&"x".repeat(128)).unwrap();
        assert!(log_prefix(&long).len() < 128);
    }
}
