//! Outgoing connections of containers: masqueraded with egress, only to peers without egress, and limited by egress
//! rules.

use executor_proto::v1::egress_rule::Protocol;
use executor_proto::v1::{EgressRule, PortRange, RunRequest};
use integration::network::{BEYOND, BEYOND_V6, HOST, HOST_V6};

use super::Place::{Beyond, Container};
use super::{BRIDGE_V4, BRIDGE_V6, INSIDE, OUTSIDE, World, addresses, server, sleeping};

/// Port of a server on the host.
const ON_HOST: u16 = 7000;

/// With egress, a container reaches the host and, from the host's addresses, the outside world. Without egress, it
/// reaches only peers.
#[test]
fn egress_is_masqueraded_in_both_families() {
    let world = World::start();
    let _outside = world.serve_beyond();
    let _host = world.serve_on_host(ON_HOST);
    let (v4, v6) = addresses(&world.serve(server("web", &[])));
    world.api().started(sleeping("open", true));
    world.api().started(sleeping("closed", false));
    for (id, open) in [("open", true), ("closed", false)] {
        let answer = |text| if open { Some(text) } else { None };
        let mut targets = Vec::new();
        // Over UDP, a host server responds from its address on the network.
        targets.extend([
            ("tcp", HOST, ON_HOST, answer("host 10.61.")),
            ("tcp", HOST_V6, ON_HOST, answer("host fd65:7865:6375:61::")),
        ]);
        for protocol in ["tcp", "udp"] {
            targets.extend([
                (protocol, BEYOND, OUTSIDE, answer("outside 192.0.2.1")),
                (protocol, BEYOND_V6, OUTSIDE, answer("outside 2001:db8::1")),
                (protocol, BRIDGE_V4, ON_HOST, answer("host 10.61.")),
                (protocol, BRIDGE_V6, ON_HOST, answer("host fd65:7865:6375:61::")),
                (protocol, v4.as_str(), INSIDE, Some("web 10.61.")),
                (protocol, v6.as_str(), INSIDE, Some("web fd65:7865:6375:61::")),
            ]);
        }
        world.assert_reached(Container(id), &targets);
    }
    // As a control, a client outside the host has its own address.
    world.assert_reached(Beyond, &[("tcp", BEYOND, OUTSIDE, Some("outside 192.0.2.2"))]);
    world.delete_all();
}

/// Egress rules allow only the traffic that they name, as on a CNI network.
#[test]
fn egress_rules_limit_a_container() {
    let world = World::start();
    let _outside = world.serve_beyond();
    let (v4, v6) = addresses(&world.serve(server("web", &[])));
    let rule = |protocol: Protocol, destination: &str| EgressRule {
        protocol: protocol.into(),
        destinations: vec![destination.into()],
        ports: vec![PortRange { first: OUTSIDE.into(), last: OUTSIDE.into() }],
        ..EgressRule::default()
    };
    let rules = vec![rule(Protocol::Tcp, BEYOND), rule(Protocol::Udp, BEYOND_V6)];
    world.api().started(RunRequest { egress_rules: rules, ..sleeping("limited", true) });
    world.api().started(sleeping("open", true));
    let targets = |open: bool| {
        let other = open.then_some("outside ");
        [
            ("tcp", BEYOND, OUTSIDE, Some("outside 192.0.2.1")),
            ("udp", BEYOND_V6, OUTSIDE, Some("outside 2001:db8::1")),
            ("udp", BEYOND, OUTSIDE, other),
            ("tcp", BEYOND_V6, OUTSIDE, other),
            ("tcp", v4.as_str(), INSIDE, Some("web ")),
            ("udp", v6.as_str(), INSIDE, Some("web ")),
        ]
    };
    world.assert_reached(Container("limited"), &targets(false));
    world.assert_reached(Container("open"), &targets(true));
    world.delete_all();
}
