//! A container that may send any frame (CAP_NET_RAW, CAP_NET_ADMIN) reaches nothing more with foreign addresses than
//! with its own addresses.
//!
//! Each frame contains its name as a mark, and a victim prints the marks of all frames that arrive. Frames of one
//! sender arrive in order, so if a later frame arrives first, the earlier frame was dropped. As a control, the rules
//! are deleted: the same frames then arrive, and change neighbour entries.

use std::net::UdpSocket;

use executor_proto::v1::RunRequest;
use executor_proto::v1::port_mapping::Protocol;
use integration::request::{RequestBuilder, program};
use integration::streams::{executed, script, start};
use integration::wait;
use serde_json::{Value, json};

use super::Place::Container;
use super::{BRIDGE_V4, BRIDGE_V6, PYTHON, World, addresses, on, published, raw, server, sleeping, tcp};

const FRAMES: &str = include_str!("frames.py");
const SNIFFER: &str = include_str!("sniffer.py");
/// The address to which a published port on the host's `::1` is translated.
const ALIAS: &str = "fd65:7865:6375:61::2";
const PORT: u16 = 18_080;

/// Frames whose source addresses do not belong to the sender.
const SPOOFED: [&str; 13] = [
    "mac4",
    "mac6",
    "mac-of-third",
    "mac-of-host",
    "ip4-of-third",
    "ip4-of-host",
    "ip4-of-outside",
    "ip4-none",
    "ip6-of-third",
    "ip6-of-host",
    "ip6-none",
    "ip6-link-local-of-third",
    "unknown-type",
];
/// Frames that claim to come from neighbours or routers, and frames with a VLAN tag of id 0. The kernel treats tagged
/// frames of id 0 as untagged.
const FALSE_NEIGHBOURS: [&str; 14] = [
    "arp-third",
    "arp-host",
    "arp-to-all",
    "arp-mac",
    "neighbour-third",
    "neighbour-host",
    "router",
    "router-hop-by-hop",
    "router-options",
    "redirect",
    "tagged-ip4-of-third",
    "tagged-ip6-of-third",
    "tagged-arp",
    "tagged-neighbour",
];

/// An attacker, a victim that prints the marks of frames, and a third container that the attacker impersonates.
struct Stage {
    world: World,
    nodes: Value,
}

impl Stage {
    fn start() -> Self {
        let world = World::start();
        let ports = [tcp("", PORT + 1)];
        let own = world.api().started(raw(RunRequest { ports: ports.to_vec(), ..sleeping("attacker", true) }));
        let sniffer = program(PYTHON, &["-c", SNIFFER]).id("victim").grace_ms(0);
        let victim = world.api().up(raw(on("bridge", sniffer)));
        let ports = [published("", PORT, Protocol::Tcp), published("", PORT, Protocol::Udp)];
        let third = world.serve(server("third", &ports));
        let node = |(v4, v6): (String, String)| json!({"mac": hardware(&v4), "v4": v4, "v6": v6});
        let nodes = json!({
            "own": node(addresses(&own)),
            "victim": node(addresses(&victim)),
            "third": node(addresses(&third)),
            "host": {"mac": hardware(BRIDGE_V4), "v4": BRIDGE_V4, "v6": BRIDGE_V6, "alias": ALIAS, "client": 0},
        });
        Self { world, nodes }
    }

    /// Sends frames from the attacker.
    fn send(&self, names: &[&str]) {
        let nodes = self.nodes.to_string();
        let arguments = [&["-c", FRAMES, &nodes][..], names].concat();
        let sent = executed(self.world.api(), start("attacker", PYTHON, &arguments)).unwrap();
        assert_eq!(sent.exit, Some(Ok(0)), "{}", String::from_utf8_lossy(&sent.stderr));
    }

    /// Skips the first `skipped` marks that have arrived at the victim. Waits until `last` is among the later marks,
    /// and returns the later marks.
    fn arrived(&self, skipped: usize, last: &str) -> Vec<String> {
        wait::until(&format!("the frame {last} arrives"), || {
            let marks: Vec<String> = self.marks().split_off(skipped);
            marks.iter().any(|mark| mark == last).then_some(marks)
        })
    }

    fn marks(&self) -> Vec<String> {
        let request = executor_proto::v1::StreamLogsRequest { id: "victim".into(), ..Default::default() };
        let mut text = Vec::new();
        for entry in self.world.api().logs(request).unwrap().rest() {
            text.extend(entry.data);
        }
        String::from_utf8(text).unwrap().lines().filter(|line| *line != "up").map(str::to_owned).collect()
    }

    /// Returns the victim's neighbour entries for the third container and the host.
    fn neighbours(&self) -> Vec<String> {
        let known = |node: &str, family: &str| self.nodes[node][family].as_str().unwrap().to_owned();
        let reported = executed(self.world.api(), script("victim", "ip neigh show dev eth0")).unwrap().text();
        let entry = |ip: String| {
            let line = reported.lines().find(|line| line.starts_with(&format!("{ip} ")));
            let mac = line.and_then(|line| line.split_once("lladdr ")).map(|(_, mac)| &mac[..17]);
            format!("{ip} {mac:?}")
        };
        ["third", "host"].iter().flat_map(|node| [entry(known(node, "v4")), entry(known(node, "v6"))]).collect()
    }

    /// Connects from the victim to the third container and to the host.
    fn connect_victim(&self) {
        let third = |family: &str| self.nodes["third"][family].as_str().unwrap().to_owned();
        let (v4, v6) = (third("v4"), third("v6"));
        let host = [BRIDGE_V4, BRIDGE_V6].map(|ip| ("tcp", ip, PORT, Some("third ")));
        let peer = [&v4, &v6].map(|ip| ("tcp", ip.as_str(), super::INSIDE, Some("third ")));
        self.world.assert_reached(Container("victim"), &[host, peer].concat());
    }

    fn delete_bridge_rules(&self) {
        self.world.network.on_host(&["nft", "flush", "chain", "bridge", "ex-bridge", "prerouting"]);
    }
}

/// Returns the hardware address that belongs to a container's IPv4 address.
fn hardware(v4: &str) -> String {
    let octets = v4.parse::<std::net::Ipv4Addr>().unwrap().octets();
    format!("02:65:{}", octets.map(|octet| format!("{octet:02x}")).join(":"))
}

#[test]
fn spoofed_addresses_reach_no_peer() {
    let stage = Stage::start();
    stage.send(&[&["own4", "own6"], &SPOOFED[..], &["own4"]].concat());
    let arrived = stage.arrived(2, "own4");
    assert_eq!((stage.marks(), arrived), (["own4", "own6", "own4"].map(str::to_owned).to_vec(), vec!["own4".into()]));
    stage.delete_bridge_rules();
    stage.send(&[&SPOOFED[..], &["own6"]].concat());
    let arrived = stage.arrived(3, "own6");
    let missing: Vec<_> = SPOOFED.iter().filter(|name| !arrived.contains(&(**name).to_owned())).collect();
    assert!(missing.is_empty(), "control: without rules everything arrives: {missing:?}");
}

#[test]
fn false_neighbours_and_routers_are_dropped() {
    let stage = Stage::start();
    stage.connect_victim();
    let before = stage.neighbours();
    assert!(before.iter().all(|entry| entry.contains("02:65:")), "{before:?}");
    stage.send(&[&FALSE_NEIGHBOURS[..], &["own-arp", "own-neighbour", "own4"]].concat());
    assert_eq!(stage.arrived(0, "own4"), ["own-arp", "own-neighbour", "own4"]);
    assert_eq!(stage.neighbours(), before);
    stage.connect_victim();
    stage.delete_bridge_rules();
    stage.send(&[&FALSE_NEIGHBOURS[..], &["own6"]].concat());
    let arrived = stage.arrived(3, "own6");
    let missing: Vec<_> = FALSE_NEIGHBOURS.iter().filter(|name| !arrived.contains(&(**name).to_owned())).collect();
    assert!(missing.is_empty(), "control: without rules everything arrives: {missing:?}");
    let own = stage.nodes["own"]["mac"].as_str().unwrap();
    wait::until_ok("control: entries of both families are changed", || {
        // The kernel keeps a new entry for a moment, and removes a false entry that does not respond.
        stage.send(&FALSE_NEIGHBOURS);
        let after = stage.neighbours();
        let is_false = |v6: bool| after.iter().any(|entry| entry.starts_with("fd65:") == v6 && entry.contains(own));
        if is_false(false) && is_false(true) { Ok(()) } else { Err(format!("{after:?}")) }
    });
}

/// If a container changes its addresses with `ip`, it reaches nothing with the new addresses.
#[test]
fn changed_addresses_reach_nothing() {
    let stage = Stage::start();
    let third = stage.nodes["third"]["v4"].as_str().unwrap().to_owned();
    let (own, mac) = (stage.nodes["own"]["v4"].as_str().unwrap(), stage.nodes["own"]["mac"].as_str().unwrap());
    let reached = |answer| [("tcp", third.as_str(), super::INSIDE, answer), ("tcp", BRIDGE_V4, PORT, answer)];
    let run = |commands: &str| {
        let done = executed(stage.world.api(), script("attacker", commands)).unwrap();
        assert_eq!(done.exit, Some(Ok(0)), "{commands}: {}", String::from_utf8_lossy(&done.stderr));
    };
    let open = || stage.world.assert_reached(Container("attacker"), &reached(Some("third ")));
    let closed = || stage.world.assert_reached(Container("attacker"), &reached(None));
    open();
    run("ip link set eth0 address 02:65:de:ad:be:ef");
    closed();
    run(&format!("ip link set eth0 address {mac}"));
    open();
    let replaced = |from: &str, to: &str| {
        format!(
            "ip address del {from}/16 dev eth0; ip address add {to}/16 dev eth0; ip route replace default via {BRIDGE_V4}"
        )
    };
    run(&replaced(own, "10.61.255.200"));
    closed();
    run(&replaced("10.61.255.200", own));
    open();
}

/// Frames to the host's loopback addresses, or to the address that stands for `::1`, reach no host program.
#[test]
fn hosts_loopback_is_not_reached() {
    let stage = Stage::start();
    let (network, world) = (&stage.world.network, &stage.world);
    let bind = |address: &str| {
        let socket = network.enter(|| UdpSocket::bind(address)).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let (v4, v6) = (bind("127.0.0.1:9999"), bind("[::1]:9999"));
    let (gateway4, gateway6, alias) =
        (bind(&format!("{BRIDGE_V4}:9999")), bind(&format!("[{BRIDGE_V6}]:9999")), bind(&format!("[{ALIAS}]:9999")));
    let receive = |socket: &UdpSocket| {
        let mut buffer = [0; 100];
        socket.recv(&mut buffer).ok().map(|length| String::from_utf8_lossy(&buffer[..length]).into_owned())
    };
    let attack = ["host-loopback4", "host-loopback6", "host-alias", "host4", "host6"];
    stage.send(&attack);
    for (socket, mark) in [(&gateway4, "host4"), (&gateway6, "host6")] {
        wait::until_ok(mark, || receive(socket).filter(|got| *got == format!("MARK:{mark};")).ok_or("nothing"));
    }
    assert_eq!([&v4, &v6, &alias].map(receive), [None, None, None]);
    // The container's own kernel opens these connections.
    let _host = world.serve_on_host(7000);
    let targets =
        ["tcp", "udp"].map(|protocol| [(protocol, ALIAS, 7000, None), (protocol, BRIDGE_V6, 7000, Some("host "))]);
    for id in ["attacker", "victim"] {
        world.assert_reached(Container(id), &targets.concat());
    }
    // As a control, the frames arrive without the rules, except frames to `::1`, which the kernel itself refuses.
    stage.delete_bridge_rules();
    network.on_host(&["nft", "flush", "chain", "inet", "ex-bridge", "input"]);
    stage.send(&attack);
    for (socket, mark) in [(&v4, "host-loopback4"), (&alias, "host-alias")] {
        wait::until_ok(mark, || receive(socket).filter(|got| *got == format!("MARK:{mark};")).ok_or("nothing"));
    }
    assert_eq!(receive(&v6), None);
}

/// A container cannot respond to a client on the host's `::1` in the name of another container.
#[test]
fn answers_to_loopback_are_not_forged() {
    let mut stage = Stage::start();
    let client = stage.world.network.enter(|| UdpSocket::bind("[::1]:0")).unwrap();
    client.connect(("::1", PORT)).unwrap();
    client.set_read_timeout(Some(std::time::Duration::from_secs(1))).unwrap();
    stage.nodes["host"]["client"] = client.local_addr().unwrap().port().into();
    let mut buffer = [0; 100];
    let mut exchange = || {
        wait::until_ok("the server responds", || {
            client.send(b"x")?;
            client.recv(&mut buffer).map(|length| String::from_utf8_lossy(&buffer[..length]).into_owned())
        })
    };
    assert!(exchange().starts_with("third "));
    stage.send(&["forged-answer", "own4"]);
    stage.arrived(0, "own4");
    assert!(exchange().starts_with("third "), "the next datagram is the server's");
    // As a control, the client receives the forged frame without the comparison of addresses.
    let network = &stage.world.network;
    let chain = network.on_host(&["nft", "list", "table", "netdev", "ex-bridge"]);
    let rule = format!("ip6 daddr {ALIAS} meta l4proto udp @ll,0,48 set 0x0 meta pkttype set host fwd to \"lo\"");
    for chain in chain.lines().filter_map(|line| line.trim().strip_prefix("chain ")?.strip_suffix(" {")) {
        network.on_host(&["nft", &format!("insert rule netdev ex-bridge {chain} {rule}")]);
    }
    stage.send(&["forged-answer"]);
    assert_eq!(exchange(), "MARK:forged-answer;");
}
