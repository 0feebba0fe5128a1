//! Selects the name servers to which a container's query may be forwarded: peers on the container's network, and
//! servers that the container's egress settings allow. Without this restriction, a container without egress could send
//! data out in queries.

use std::net::IpAddr;

use executor_core::bridge::BridgeNetwork;
use executor_core::cni::Address;
use executor_core::names::is_own_server;
use executor_core::plan::{Connectivity, EgressProtocol, EgressRule};

/// Port of a DNS server.
pub(super) const NAMES_PORT: u16 = 53;

/// Transport protocol of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Udp,
    Tcp,
}

/// Name servers to which a container's query may be forwarded, by transport protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AllowedServers {
    pub(super) udp: Vec<IpAddr>,
    pub(super) tcp: Vec<IpAddr>,
}

impl AllowedServers {
    /// Selects from the name servers of the request.
    ///
    /// If the request names none and the container has egress, selects from the host's name servers. `own` contains the
    /// container's addresses.
    pub(super) fn select(
        connectivity: &Connectivity,
        (network, own): (&BridgeNetwork, &[Address]),
        of_host: impl FnOnce() -> Vec<IpAddr>,
    ) -> Self {
        let servers: Vec<IpAddr> = match &connectivity.dns_servers[..] {
            [] if connectivity.egress => of_host(),
            [] => Vec::new(),
            // In the request, a loopback address means the container's own loopback.
            asked => asked.iter().map(IpAddr::to_canonical).filter(|server| !is_own_server(*server)).collect(),
        };
        let allowed = |transport| {
            let may_ask = |server: &&IpAddr| may_ask(connectivity, (network, own), transport, **server);
            servers.iter().filter(may_ask).copied().collect()
        };
        Self { udp: allowed(Transport::Udp), tcp: allowed(Transport::Tcp) }
    }

    /// Returns true if no server may be queried.
    pub(super) fn is_empty(&self) -> bool {
        self.udp.is_empty() && self.tcp.is_empty()
    }
}

/// Returns true if the container may open connections to the server's port.
fn may_ask(
    connectivity: &Connectivity,
    (network, own): (&BridgeNetwork, &[Address]),
    transport: Transport,
    server: IpAddr,
) -> bool {
    let is_peer = || {
        let number = network.number_of(server);
        number.is_some_and(|number| network.numbers().contains(&number))
            && own.iter().any(|address| address.network_has(server))
    };
    let is_open = connectivity.egress && connectivity.egress_rules.is_empty();
    is_open || is_peer() || connectivity.egress_rules.iter().any(|rule| allows(rule, transport, server))
}

fn allows(rule: &EgressRule, transport: Transport, server: IpAddr) -> bool {
    let is_protocol = match rule.protocol {
        EgressProtocol::All => true,
        EgressProtocol::Tcp => transport == Transport::Tcp,
        EgressProtocol::Udp => transport == Transport::Udp,
        EgressProtocol::Icmp | EgressProtocol::Icmpv6 => false,
    };
    let is_port =
        rule.ports.is_empty() || rule.ports.iter().any(|ports| (ports.first..=ports.last).contains(&NAMES_PORT));
    let is_destination = rule
        .destinations
        .iter()
        .any(|range| range.first.is_ipv4() == server.is_ipv4() && range.first <= server && server <= range.last);
    is_protocol && is_port && is_destination
}

#[cfg(test)]
mod tests {
    use executor_core::bridge::{BRIDGE, NetworksSettings};
    use executor_core::plan::PortRange;

    use super::*;

    const HOST: &str = "192.0.2.53";
    const ON_LOOPBACK: &str = "127.0.0.53";
    const PEER: &str = "10.61.0.9";

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn rule(protocol: EgressProtocol, destination: &str, ports: &[(u16, u16)]) -> EgressRule {
        let ports = ports.iter().map(|(first, last)| PortRange { first: *first, last: *last }).collect();
        EgressRule { protocol, destinations: vec![destination.parse().unwrap()], ports, icmp: None, log: false }
    }

    /// Returns the servers that may be queried over UDP and over TCP.
    fn allowed(servers: &[&str], egress: bool, egress_rules: Vec<EgressRule>) -> (Vec<String>, Vec<String>) {
        let dns_servers = servers.iter().map(|server| ip(server)).collect();
        let connectivity = Connectivity { dns_servers, egress, egress_rules, ..Connectivity::default() };
        let networks = NetworksSettings::default().check().unwrap();
        let network = &networks[BRIDGE];
        let of_host = || vec![ip(ON_LOOPBACK), ip(HOST), ip(PEER)];
        let allowed = AllowedServers::select(&connectivity, (network, &network.addresses(7)), of_host);
        let shown = |servers: Vec<IpAddr>| servers.iter().map(ToString::to_string).collect();
        (shown(allowed.udp), shown(allowed.tcp))
    }

    fn both(servers: &[&str]) -> (Vec<String>, Vec<String>) {
        let servers: Vec<String> = servers.iter().map(|&server| server.to_owned()).collect();
        (servers.clone(), servers)
    }

    #[test]
    fn without_egress_only_requested_peers_are_asked() {
        assert_eq!(allowed(&[], false, Vec::new()), both(&[]));
        let servers = [HOST, PEER, "10.61.0.1", "10.61.0.2", "10.62.0.9", "127.0.0.1", "fd65:7865:6375:61::9"];
        assert_eq!(allowed(&servers, false, Vec::new()), both(&[PEER, "fd65:7865:6375:61::9"]));
    }

    #[test]
    fn open_egress_asks_the_hosts_servers() {
        assert_eq!(allowed(&[], true, Vec::new()), both(&[ON_LOOPBACK, HOST, PEER]));
        let own = ["127.0.0.1", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1", "198.51.100.1"];
        assert_eq!(
            allowed(&own, true, Vec::new()),
            both(&["198.51.100.1"]),
            "the loopback address is the container's own"
        );
    }

    #[test]
    fn rules_decide_by_server_protocol_and_port() {
        use EgressProtocol::{All, Icmp, Tcp, Udp};
        let one = |rule| allowed(&[], true, vec![rule]);
        let none: Vec<String> = Vec::new();
        let with_peer = |server: &str| both(&[server, PEER]).0;
        let peer = || both(&[PEER]).0;
        assert_eq!(one(rule(All, HOST, &[])), (with_peer(HOST), with_peer(HOST)));
        assert_eq!(one(rule(Udp, HOST, &[(53, 53)])), (with_peer(HOST), peer()));
        assert_eq!(one(rule(Tcp, HOST, &[(1, 52), (53, 60)])), (peer(), with_peer(HOST)));
        assert_eq!(one(rule(Udp, HOST, &[(1, 52), (54, 60)])), (peer(), peer()));
        assert_eq!(one(rule(Icmp, HOST, &[])), (peer(), peer()));
        assert_eq!(one(rule(All, "192.0.2.54", &[])), (peer(), peer()));
        assert_eq!(one(rule(All, "::/0", &[])), (peer(), peer()), "a rule of the other family");
        // If egress rules exist, a name server on the host's loopback is queried only if a rule contains its address.
        assert_eq!(one(rule(Udp, "127.0.0.0/8", &[])).0, with_peer(ON_LOOPBACK));
        // An IPv4-mapped IPv6 address is treated as an IPv4 address.
        let mapped = |destination| allowed(&["::ffff:192.0.2.53"], true, vec![rule(All, destination, &[])]);
        assert_eq!(mapped("::/0"), (none.clone(), none));
        assert_eq!(mapped(HOST), both(&[HOST]));
    }
}
