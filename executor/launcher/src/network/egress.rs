//! No connections to beyond the container's own network, where the request did not ask for them.
//!
//! In the container's network namespace, before anything runs in it, a table of nf_tables is made that lets out: what
//! belongs to connections that others opened, what goes to the networks of the container's own addresses, and neighbour
//! discovery. Not let out is what goes to the gateways and to the host's own addresses in those networks: the host is no
//! peer. Changing the table needs CAP_NET_ADMIN over the namespace, and passing it by needs CAP_NET_RAW; without egress
//! no container gets either (core's validation).

use std::io;
use std::net::IpAddr;

use executor_core::cni::{Address, Addresses};
use executor_core::ident::ContainerId;
use nix::sys::socket::SockaddrLike;

use super::netns;
use super::nft::{self, ESTABLISHED, Hook, IPV4, IPV6, RELATED, Step};
use crate::host::Host;

/// Name of the table.
const TABLE: &str = "executor-egress";
/// The first interface of every network namespace.
const LOOPBACK: u32 = 1;
const ICMPV6: u8 = 58;
/// Without these there is no IPv6 on a link: router and neighbour solicitation, advertisement, multicast membership.
const NEIGHBOURS: [u8; 4] = [133, 135, 136, 143];

/// Closes it.
///
/// # Errors
/// The kernel has no nf_tables, or does not take the rules: it is not closed then.
pub(super) fn close(host: &Host, id: &ContainerId, addresses: &Addresses) -> io::Result<()> {
    let mut hosts = addresses.gateways.clone();
    hosts.extend(own_addresses(host_addresses()?, &addresses.own));
    let rules = rules(&addresses.own, &hosts);
    netns::inside(host, id, || {
        let chains = |rules| [("output", Hook::Output, rules), ("forward", Hook::Forward, Vec::new())];
        // What is dropped without a word is dropped all the same, where the kernel cannot reject.
        nft::commit(TABLE, &chains(rules.clone())).or_else(|_| {
            let quiet = rules.iter().filter(|rule| !rule.contains(&Step::Reject)).cloned().collect();
            nft::commit(TABLE, &chains(quiet))
        })
    })
}

/// Addresses of the host's interfaces.
fn host_addresses() -> io::Result<Vec<IpAddr>> {
    let all = nix::ifaddrs::getifaddrs()?.filter_map(|interface| interface.address);
    let address = |address: nix::sys::socket::SockaddrStorage| match address.family()? {
        nix::sys::socket::AddressFamily::Inet => address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip())),
        nix::sys::socket::AddressFamily::Inet6 => address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())),
        _ => None,
    };
    Ok(all.filter_map(address).collect())
}

/// Those of the host that lie in the container's networks.
fn own_addresses(host: Vec<IpAddr>, own: &[Address]) -> impl Iterator<Item = IpAddr> {
    host.into_iter().filter(|ip| own.iter().any(|address| address.network_has(*ip)))
}

/// Returns the rules for what is let out, in this order.
fn rules(own: &[Address], hosts: &[IpAddr]) -> Vec<Vec<Step>> {
    let mut rules =
        vec![vec![Step::Interface(LOOPBACK), Step::Accept], vec![Step::State(ESTABLISHED | RELATED), Step::Accept]];
    let neighbour = |kind| vec![Step::Family(IPV6), Step::Transport(ICMPV6), Step::Kind(kind), Step::Accept];
    rules.extend(NEIGHBOURS.map(neighbour));
    for host in hosts {
        let whole = Address { ip: *host, prefix: if host.is_ipv4() { 32 } else { 128 } };
        rules.push(to(whole, Step::Reject));
        rules.push(to(whole, Step::Drop));
    }
    for address in own {
        if let Some(everybody) = broadcast(*address) {
            rules.push(to(everybody, Step::Drop)); // the host hears it too
        }
        rules.push(to(*address, Step::Accept));
    }
    rules.push(vec![Step::Reject]);
    rules
}

/// Returns a rule for what goes to the network of an address.
fn to(network: Address, then: Step) -> Vec<Step> {
    let (family, offset, value) = match network.ip {
        IpAddr::V4(ip) => (IPV4, 16, ip.octets().to_vec()),
        IpAddr::V6(ip) => (IPV6, 24, ip.octets().to_vec()),
    };
    let bits = (0..value.len()).map(|index| {
        let ones = usize::from(network.prefix).saturating_sub(index * 8).min(8);
        (0xff00u16 >> ones) as u8
    });
    let mask = bits.collect();
    vec![Step::Family(family), Step::Header { offset, value, mask }, then]
}

/// The address that all of a network hear, where it has one.
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
    use super::*;

    fn address(ip: &str, prefix: u8) -> Address {
        Address { ip: ip.parse().unwrap(), prefix }
    }

    #[test]
    fn a_network_is_told_by_its_leading_bits() {
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

    /// The host's addresses are refused before their network is let through, and everything else is refused last.
    #[test]
    fn the_host_is_no_peer() {
        let own = [address("10.1.0.5", 16)];
        let hosts = ["192.0.2.1", "10.1.0.1"].map(|ip| ip.parse().unwrap()).to_vec();
        let near: Vec<IpAddr> = own_addresses(hosts, &own).collect();
        assert_eq!(near, ["10.1.0.1".parse::<IpAddr>().unwrap()]);
        let rules = rules(&own, &near);
        let at = |wanted: &[Step]| rules.iter().position(|rule| rule == wanted).unwrap();
        assert!(at(&to(address("10.1.0.1", 32), Step::Drop)) < at(&to(own[0], Step::Accept)));
        assert_eq!(rules.last().unwrap(), &[Step::Reject]);
    }
}
