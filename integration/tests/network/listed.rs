//! `network ls` and `network inspect` show the host's networks, with the containers on them.

use executor_proto::v1::{PortMapping, RunRequest};
use integration::cli;
use integration::network::Network;
use integration::rootfs::Rootfs;

use super::sleeping;

#[test]
fn networks_are_listed_with_their_containers() {
    let (network, rootfs) = (Network::new(), Rootfs::busybox());
    network.configure("10-test.conflist", "test", &[]);
    let daemon = network.daemon("");
    std::fs::write(network.dir().join("net.d/20-broken.conf"), "{").unwrap();
    let listed = |words: &[&str]| cli::run(&daemon.socket(), words);
    let before = listed(&["network", "inspect", "bridge", "--json"]).json();
    assert_eq!((&before["interface_exists"], &before["leased_addresses"]), (&false.into(), &0.into()), "{before}");

    let port = PortMapping { host_port: 18080, container_port: 8080, ..PortMapping::default() };
    let on = |name: &str, id: &str| RunRequest { network_name: name.into(), ..sleeping(id, &rootfs) };
    let web = daemon.api.started(RunRequest { ports: vec![port], ..on("bridge", "web") });
    let plugged = daemon.api.started(on("test", "plugged"));

    let table = listed(&["network", "ls"]);
    let rows: Vec<Vec<&str>> = table.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    let subnets = "10.61.0.0/16,fd65:7865:6375:61::/64";
    assert_eq!(rows[1..], [vec!["bridge", "bridge", "ex-bridge", subnets, "1"], vec!["test", "cni", "-", "-", "1"]]);
    assert!(table.stderr.contains("20-broken.conf: is not a JSON object"), "{table:?}");

    let bridge = listed(&["network", "inspect", "bridge", "--json"]).json();
    assert_eq!((&bridge["interface_exists"], &bridge["leased_addresses"]), (&true.into(), &1.into()), "{bridge}");
    assert_eq!((&bridge["mtu"], &bridge["gateways"][0]), (&1500.into(), &"10.61.0.1".into()), "{bridge}");
    let container = &bridge["containers"][0];
    assert_eq!((&container["id"], &container["ports"][0]["host_port"]), (&"web".into(), &18080.into()), "{bridge}");
    let addresses = web.network_status.unwrap().addresses;
    assert_eq!(container["addresses"], serde_json::json!(addresses));
    // The test's host is a network namespace, which forwards no packets by default.
    let forwards = network.on_host(&["cat", "/proc/sys/net/ipv4/ip_forward"]);
    let warns = bridge["warnings"].to_string().contains("net.ipv4.ip_forward is 0");
    assert_eq!(warns, forwards.trim() == "0", "{forwards}: {bridge}");
    network.on_host(&["sysctl", "-w", if warns { "net.ipv4.ip_forward=1" } else { "net.ipv4.ip_forward=0" }]);
    let changed = listed(&["network", "inspect", "bridge"]).stdout;
    assert_eq!(changed.contains("net.ipv4.ip_forward is 0"), !warns, "{changed}");

    let cni = listed(&["network", "inspect", "test", "--json"]).json();
    assert_eq!(cni["plugins"], serde_json::json!(["bridge", "portmap"]));
    assert_eq!(cni["containers"][0]["addresses"], serde_json::json!(plugged.network_status.unwrap().addresses));

    let missing = listed(&["network", "inspect", "nope"]);
    assert!(missing.status == 125 && missing.stderr.contains("there is no network `nope`"), "{missing:?}");
    assert!(missing.stderr.contains("20-broken.conf"), "{missing:?}");

    // If the file of a network is removed, the network is listed while a container is on it.
    network.remove_config("10-test.conflist");
    let removed = listed(&["network", "inspect", "test"]).stdout;
    assert!(removed.contains("configuration of this network was removed") && removed.contains("plugged"), "{removed}");
    for id in ["web", "plugged"] {
        daemon.api.delete(id, true).unwrap();
    }
    let names = listed(&["network", "ls", "-q"]).stdout;
    assert_eq!(names, "bridge\n");
}
