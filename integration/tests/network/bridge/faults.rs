//! Errors of the host and of requests: a start is refused with the reason, or restores the deleted objects. Nothing is
//! left after a refusal.

use executor_proto::v1::RunRequest;
use integration::network::{HOST, HOST_V6};
use tonic::Code;

use super::Place::{Beyond, Container, Host};
use super::{BLUE, BRIDGE, INSIDE, World, addresses, assert_refused, field, on, server, sleeping, tcp};

const PORT: u16 = 18_080;

/// A pool that overlaps a host route is refused with the route and the key.
#[test]
fn pools_do_not_overlap_routes() {
    let world = World::start();
    for (family, route, pool, key) in [
        ("-4", "10.61.5.0/24", "10.61.0.0/16", "networks.bridge.ipv4"),
        ("-4", "10.0.0.0/8", "10.61.0.0/16", "networks.bridge.ipv4"),
        ("-6", "fd65:7865:6375::/48", "fd65:7865:6375:61::/64", "networks.bridge.ipv6"),
    ] {
        world.network.on_host(&["ip", family, "route", "add", route, "dev", "out0"]);
        let refused = world.api().run(sleeping("refused", false)).unwrap_err();
        let words = format!(
            "network `bridge`: the addresses {pool} overlap the route {route} of interface out0; set {key} to a free range"
        );
        assert_refused(&refused, &words);
        world.assert_nothing_left();
        assert!(!world.network.on_host(&["ip", "link"]).contains("ex-bridge"));
        world.network.on_host(&["ip", family, "route", "del", route, "dev", "out0"]);
    }
    world.serve(server("control", &[]));
    world.delete_all();
}

/// If an interface with the name of the network's bridge does not belong to the executor, the container is refused, and
/// the interface is not changed.
#[test]
fn foreign_interfaces_are_not_used() {
    let world = World::start();
    for kind in ["bridge", "veth"] {
        world.network.on_host(&["ip", "link", "add", "ex-bridge", "type", kind]);
        let before = world.network.on_host(&["ip", "-d", "link", "show", "ex-bridge"]);
        let refused = world.api().run(sleeping("refused", false)).unwrap_err();
        let words = "network `bridge`: host interface `ex-bridge` does not belong to the executor; remove the interface, \
                     or set networks.bridge.interface to another name";
        assert_refused(&refused, words);
        assert_eq!(world.network.on_host(&["ip", "-d", "link", "show", "ex-bridge"]), before);
        assert!(!world.network.on_host(&["nft", "list", "tables"]).contains("ex-bridge"));
        world.network.on_host(&["ip", "link", "del", "ex-bridge"]);
        world.assert_nothing_left();
    }
    world.serve(server("control", &[]));
    world.delete_all();
}

/// If the address ranges of a network change, containers are refused while others have addresses of the earlier ranges.
/// The listing shows the same reason.
#[test]
fn changed_ranges_wait_for_containers() {
    let mut world = World::configured(BRIDGE);
    let listed =
        |world: &World| integration::cli::run(&world.daemon.socket(), &["network", "inspect", "bridge"]).stdout;
    let (before, _) = addresses(&world.serve(server("web", &[])));
    assert!(before.starts_with("10.61."), "{before}");
    let words = "the configuration changed while containers use the network; remove the containers, or undo the change \
                 of networks.bridge";
    assert!(!listed(&world).contains(words), "the control");

    world.restart_on(&BRIDGE.replace("10.61.", "10.63."));
    let warnings = listed(&world);
    assert!(warnings.contains(words) && !warnings.contains("does not belong"), "{warnings}");
    assert_refused(&world.api().run(sleeping("refused", false)).unwrap_err(), &format!("network `bridge`: {words}"));
    world.api().delete("web", true).unwrap();
    let (after, _) = addresses(&world.api().started(sleeping("next", false)));
    assert!(after.starts_with("10.63."), "{after}");
    assert!(!listed(&world).contains(words));
    world.delete_all();
}

#[test]
fn full_networks_refuse_containers() {
    let world = World::configured("[networks.bridge]\nipv4 = \"10.61.0.0/29\"\nipv6 = \"fd61::/64\"\n");
    let mut seen: Vec<String> =
        (0..4).map(|at| addresses(&world.api().started(sleeping(&format!("c{at}"), false))).0).collect();
    seen.sort();
    assert_eq!(seen, ["10.61.0.3", "10.61.0.4", "10.61.0.5", "10.61.0.6"]);
    let before = world.network.bridge_leftovers(world.daemon.setup());
    let refused = world.api().run(sleeping("fifth", false)).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert!(refused.message().contains("network `bridge`: all 4 addresses are in use"), "{refused:?}");
    integration::wait::until_ok("nothing is left of the refused container", || {
        let after = world.network.bridge_leftovers(world.daemon.setup());
        if after == before { Ok(()) } else { Err(format!("{after:#?}")) }
    });
    world.api().delete("c2", true).unwrap();
    let (freed, _) = addresses(&world.api().started(sleeping("fifth", false)));
    assert!(seen.contains(&freed));
    world.delete_all();
}

/// An unknown name is refused with the names of the built-in networks.
#[test]
fn unknown_networks_are_refused_with_names() {
    let world = World::configured(&format!("{BRIDGE}{BLUE}"));
    let refused = world.api().run(on("nope", sleeping("refused", false))).unwrap_err();
    assert_refused(&refused, "built-in networks: blue, bridge");
    assert!(refused.message().contains("`nope`"), "{refused:?}");
    assert_eq!(field(&refused), "network_name");
    world.assert_nothing_left();
    world.serve(on("blue", server("control", &[])));
    world.delete_all();
}

/// If the bridge or the rules are damaged, running containers lose their network. The next start of a container repairs
/// the network.
#[test]
fn next_start_mends_a_network() {
    assert_mended("");
}

/// The launch of a warm container that is already on the network also repairs the network.
#[test]
fn warm_container_mends_its_network() {
    if integration::warm_pool::is_enabled() {
        assert_mended("[warm_pool]\nnetwork = \"bridge\"\n");
    }
}

fn assert_mended(configuration: &str) {
    let world = World::configured(configuration);
    let web = RunRequest { egress: true, ..server("web", &[tcp("", PORT)]) };
    let (v4, v6) = addresses(&world.serve(web));
    world.api().started(sleeping("peer", false));
    let reached = || {
        let every = |ips: &[&'static str]| ips.iter().map(|ip| ("tcp", *ip, PORT, Some("web "))).collect::<Vec<_>>();
        world.assert_reached(Host, &every(&["127.0.0.1", "::1", HOST, HOST_V6]));
        world.assert_reached(Beyond, &every(&[HOST, HOST_V6]));
        world.assert_reached(Container("web"), &every(&[HOST, HOST_V6]));
        world.assert_reached(Container("peer"), &[&v4, &v6].map(|ip| ("tcp", ip.as_str(), INSIDE, Some("web "))));
    };
    reached();
    for (at, (damage, answer)) in [
        ("ip link del ex-bridge", None),
        ("nft flush ruleset", None),
        ("ip link del ex-bridge; nft flush ruleset", None),
        ("ip link set ex-bridge down", None),
        ("nft delete table inet ex-bridge", None),
        // Without this table ports still respond, and containers can send any frame.
        ("nft delete table bridge ex-bridge", Some("web ")),
    ]
    .into_iter()
    .enumerate()
    {
        world.api().wait_until_warm_pool_is_ready();
        world.network.on_host(&["sh", "-c", damage]);
        // As a control, the damage breaks the port, except in the case with an expected response.
        world.assert_reached(Beyond, &[("tcp", HOST, PORT, answer), ("tcp", HOST_V6, PORT, answer)]);
        let id = format!("next{at}");
        world.api().started(sleeping(&id, false));
        eprintln!("after {damage}");
        reached();
        let tables = world.network.on_host(&["nft", "list", "tables"]);
        assert_eq!(tables.matches("ex-bridge").count(), 3, "{tables}");
        world.api().delete(&id, true).unwrap();
    }
    for id in world.api().ids() {
        world.api().delete(&id, true).unwrap();
    }
    if configuration.is_empty() {
        world.assert_nothing_left();
    }
}

/// A start with a published port does not read the records of containers without that port: here one of these records
/// cannot be read.
#[test]
fn unrelated_records_are_not_read() {
    let world = World::start();
    let records = world.daemon.setup().state_dir().join("networks");
    world.serve(server("first", &[tcp("", PORT)]));
    let unreadable = records.join("unreadable.json");
    let made = std::process::Command::new("mkfifo").arg(&unreadable).status().unwrap();
    assert!(made.success(), "cannot create a FIFO, which would block a reader");
    world.serve(server("second", &[tcp("", PORT + 1)]));
    std::fs::remove_file(unreadable).unwrap();
    // As a control, the record of the container with the port is read.
    let refused = world.api().run(server("third", &[tcp("", PORT)])).unwrap_err();
    let why = format!("host port {PORT}/tcp is already published by container `first`");
    assert!(refused.message().contains(&why), "{refused:?}");
    world.delete_all();
    world.assert_nothing_left();
}

/// Recreated rules do not include a container that is being removed.
#[test]
fn rules_of_leaving_containers_stay_removed() {
    let world = World::start();
    let record = world.daemon.setup().state_dir().join("networks/leaving.json");
    let address = addresses(&world.api().started(server("leaving", &[tcp("", PORT)]))).0;
    let mark = |is_leaving: bool| {
        let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
        json["is_leaving"] = is_leaving.into();
        std::fs::write(&record, json.to_string()).unwrap();
    };
    for (id, is_leaving) in [("control", false), ("after", true)] {
        mark(is_leaving);
        world.network.on_host(&["nft", "flush", "ruleset"]);
        let other = addresses(&world.api().started(sleeping(id, false))).0;
        let rules = world.network.on_host(&["nft", "list", "ruleset"]);
        assert!(rules.contains(&other), "{rules}");
        assert_eq!(rules.contains(&address), !is_leaving, "{rules}");
    }
    world.delete_all();
    world.assert_nothing_left();
}
