//! Containers of different networks do not reach each other. Members of a pod share an address.

use executor_client::Pods;
use executor_proto::v1::{self, CreatePodRequest, RunRequest};
use integration::api::pid;
use integration::network::{HOST, HOST_V6};

use super::Place::Container;
use super::{BLUE, BRIDGE, INSIDE, World, addresses, on, server, sleeping, tcp};

/// Containers with egress reach servers of another network only through published ports.
#[test]
fn networks_do_not_reach_each_other() {
    const PORT: u16 = 18_080;
    let world = World::configured(&format!("{BRIDGE}{BLUE}"));
    let (own4, own6) = addresses(&world.serve(server("own", &[])));
    let other = world.serve(on("blue", server("other", &[tcp("", PORT)])));
    let (other4, other6) = addresses(&other);
    assert!(other4.starts_with("10.62.") && other6.starts_with("fd62::"), "{other:?}");
    world.api().started(sleeping("client", true));
    world.api().started(on("blue", sleeping("blue-client", true)));
    for (client, in_bridge, in_blue) in [("client", Some("own "), None), ("blue-client", None, Some("other "))] {
        let mut targets = vec![("tcp", HOST, PORT, Some("other ")), ("tcp", HOST_V6, PORT, Some("other "))];
        for protocol in ["tcp", "udp"] {
            targets.extend([&own4, &own6].map(|ip| (protocol, ip.as_str(), INSIDE, in_bridge)));
            targets.extend([&other4, &other6].map(|ip| (protocol, ip.as_str(), INSIDE, in_blue)));
        }
        world.assert_reached(Container(client), &targets);
    }
    // As a control, the containers reach the other network without the rules.
    for network in ["ex-bridge", "ex-blue"] {
        world.network.on_host(&["nft", "flush", "chain", "inet", network, "forward"]);
    }
    world.assert_reached(
        Container("client"),
        &[&other4, &other6].map(|ip| ("tcp", ip.as_str(), INSIDE, Some("other "))),
    );
    world.delete_all();
}

/// Members of a pod on a built-in network have one network namespace, with one address and the pod's published ports.
#[test]
fn members_of_a_pod_share_the_address() {
    const PORT: u16 = 18_080;
    let world = World::start();
    let pods: Pods = world.api().client().pods();
    let asked = CreatePodRequest {
        id: "pod".into(),
        network: v1::Network::Cni.into(),
        network_name: "bridge".into(),
        ports: vec![tcp("", PORT)],
        ..CreatePodRequest::default()
    };
    world.api().block_on(pods.create(&asked)).unwrap();
    let member = |request: RunRequest| RunRequest {
        pod: "pod".into(),
        network: v1::Network::default().into(),
        network_name: String::new(),
        ..request
    };
    let web = world.serve(member(server("web", &[])));
    let second = world.api().started(member(sleeping("second", false)));
    let namespace = |container| std::fs::read_link(format!("/proc/{}/ns/net", pid(container))).unwrap();
    assert_eq!(namespace(&web), namespace(&second));
    let alone = world.api().started(sleeping("alone", false));
    assert_ne!(namespace(&web), namespace(&alone), "control failed");
    world.assert_reached(Container("second"), &[("tcp", "127.0.0.1", INSIDE, Some("web "))]);
    world.assert_reached(Container("alone"), &[("tcp", "127.0.0.1", INSIDE, None)]);
    let shown = world.network.on_host(&["ip", "-o", "link", "show", "master", "ex-bridge"]);
    assert_eq!(shown.lines().count(), 2, "one port for the pod, one for the control: {shown}");
    world.assert_reached(super::Place::Host, &[("tcp", "127.0.0.1", PORT, Some("web "))]);
    let pod = world.api().block_on(pods.get("pod")).unwrap();
    let status = pod.network_status.unwrap();
    let ips: Vec<&str> = status.addresses.iter().map(|address| address.split('/').next().unwrap()).collect();
    assert_eq!(ips.len(), 2, "{status:?}");
    let reached: Vec<_> = ips.iter().map(|ip| ("tcp", *ip, INSIDE, Some("web "))).collect();
    world.assert_reached(Container("alone"), &reached);
    world.assert_reached(Container("second"), &reached);
    world.api().delete("alone", true).unwrap();
    world.api().block_on(pods.delete("pod", true)).unwrap();
    world.assert_nothing_left();
}
