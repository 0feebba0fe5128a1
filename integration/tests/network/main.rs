//! CNI networks with the plugins of Debian's containernetworking-plugins: reachable peers, the files with a container's
//! names, and cleanup after every kind of exit. Each test has its own simulated host, see [`integration::network`].

#![allow(clippy::unwrap_used)] // a test that cannot continue fails

mod bridge;
mod checks;
mod collected;
mod egress;
mod faulty;
mod listed;
mod names;
mod options;
mod ports;
mod probed;
mod readme;
mod stats;
mod versions;
mod ways_out;

use executor_proto::v1::{self, Container, PortMapping, RunRequest};
use integration::daemon::Daemon;
use integration::network::{BEYOND, BEYOND_PORT, BEYOND_SAYS, BEYOND_V6, GATEWAY, GATEWAY_V6, HOST_V6, Network};
use integration::request::{RequestBuilder, sh};
use integration::rootfs::Rootfs;
use integration::wait;

/// A server that responds to every connection with its name.
const SERVE: &str = "exec busybox nc -ll -p 8080 -e /bin/echo from-$0";

fn on_cni(request: RunRequest) -> RunRequest {
    RunRequest { network: v1::Network::Cni.into(), ..request }
}

fn server(id: &str, rootfs: &Rootfs) -> RunRequest {
    on_cni(sh(SERVE).id(id).rootfs(&rootfs.reference())).action(|run| run.args.push(id.into()))
}

/// Returns the address of a container without the prefix length.
fn address(container: &Container) -> String {
    let status = container.network_status.clone().unwrap();
    status.addresses[0].split_once('/').unwrap().0.to_owned()
}

/// Runs a script to its exit and returns its output.
fn script_output(daemon: &Daemon, request: RunRequest) -> String {
    let container = daemon.api.run_to_end(request);
    let output = daemon.api.output(&container.id);
    format!("{}{}", output.text(), String::from_utf8_lossy(&output.stderr))
}

/// Builds a request for a container that runs until it is stopped.
fn sleeping(id: &str, rootfs: &Rootfs) -> RunRequest {
    on_cni(sh("exec sleep 100000").id(id).rootfs(&rootfs.reference()))
}

/// Waits until nothing is left of the network's containers.
fn until_clean(network: &Network, daemon: &Daemon) {
    wait::until_ok("no network object is left", || match network.leftovers(daemon.setup()) {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:#?}")),
    });
}

/// Connects from a container and returns the server's response.
fn connect_from_container(daemon: &Daemon, rootfs: &Rootfs, address: &str, port: u16, egress: bool) -> String {
    let script = format!("busybox nc -w 2 {address} {port} </dev/null");
    script_output(daemon, RunRequest { egress, ..on_cni(sh(&script).rootfs(&rootfs.reference())) })
}

#[test]
fn containers_reach_peers_and_published_ports_work() {
    let (network, rootfs) = (Network::new(), Rootfs::busybox());
    network.configure("10-test.conflist", "test", &[]);
    let daemon = network.daemon("allow_egress = true");
    let before = daemon.footprint();
    let port = PortMapping { host_port: 18080, container_port: 8080, ..PortMapping::default() };
    let published = daemon.api.started(RunRequest { ports: vec![port.clone()], ..server("web", &rootfs) });
    let status = published.network_status.clone().unwrap();
    assert_eq!((status.addresses.len(), &*status.name), (1, "test"));
    assert!(status.addresses[0].starts_with("10.123.0.") && status.addresses[0].ends_with("/24"), "{status:?}");
    assert_eq!(status.ports, [port]);

    let by_address = || connect_from_container(&daemon, &rootfs, &address(&published), 8080, false);
    wait::until("a peer gets a response", || by_address().contains("from-web").then_some(()));
    for host in ["127.0.0.1", "192.0.2.1"] {
        // A published port is reachable over loopback only if the plugin routes it, which is the default of this
        // plugin.
        wait::until_ok(host, || match network.on_host(&["busybox", "nc", "-w", "2", host, "18080"]) {
            reported if reported.contains("from-web") => Ok(()),
            reported => Err(reported),
        });
    }
    let unpublished = network.on_host(&["busybox", "nc", "-w", "2", "192.0.2.1", "18081"]);
    assert!(!unpublished.contains("from-web"), "control: a port that is not published");

    daemon.api.delete("web", true).unwrap();
    assert_eq!(network.leftovers(daemon.setup()), Vec::<String>::new());
    for id in daemon.api.ids() {
        daemon.api.delete(&id, true).unwrap();
    }
    daemon.wait_until_back_at(&before);
}

#[test]
fn egress_is_closed_by_default() {
    let (network, rootfs) = (Network::new(), Rootfs::busybox());
    network.configure("10-test.conflist", "test", &[]);
    let daemon = network.daemon("allow_egress = true");
    let mut on_host = network.start_on_host(&["busybox", "nc", "-ll", "-p", "7000", "-e", "/bin/echo", "from-host"]);
    let beyond = |egress| connect_from_container(&daemon, &rootfs, BEYOND, BEYOND_PORT, egress);
    wait::until("control failed", || beyond(true).contains(BEYOND_SAYS).then_some(()));
    let closed = beyond(false);
    assert!(!closed.contains(BEYOND_SAYS), "{closed}");
    // The host is not a peer: a container without egress reaches neither the bridge's address nor another host address.
    for address in [GATEWAY, "192.0.2.1"] {
        let host = |egress| connect_from_container(&daemon, &rootfs, address, 7000, egress);
        wait::until("control failed", || host(true).contains("from-host").then_some(()));
        let closed = host(false);
        assert!(!closed.contains("from-host"), "{address}: {closed}");
    }
    on_host.kill().unwrap();
    on_host.wait().unwrap();
}

/// Without egress, peers reach one another in both address families. Neighbour discovery still works, although the
/// rules filter its packets. Neither the outside world nor the host is reachable, not even over the bridge's link-local
/// address.
#[test]
fn egress_is_closed_for_both_families() {
    let (network, rootfs) = (Network::new(), Rootfs::busybox());
    network.configure_both_families("10-test.conflist", "test");
    let daemon = network.daemon("allow_egress = true");
    let server = daemon.api.started(server("web", &rootfs));
    let addresses = server.network_status.unwrap().addresses;
    let of =
        |start: &str| addresses.iter().find_map(|one| one.starts_with(start).then(|| one.split('/').next().unwrap()));
    for peer in [of("10.123.0.").unwrap(), of("fd00:123::").unwrap()] {
        let reported = || connect_from_container(&daemon, &rootfs, peer, 8080, false);
        wait::until("a peer gets a response", || reported().contains("from-web").then_some(()));
    }
    let mut on_host = network.start_on_host(&["busybox", "nc", "-ll", "-p", "7000", "-e", "/bin/echo", "from-host"]);
    let link_local = format!("{}%eth0", network.bridge_link_local());
    for (address, port, says) in [
        (BEYOND, BEYOND_PORT, BEYOND_SAYS),
        (BEYOND_V6, BEYOND_PORT, BEYOND_SAYS),
        (GATEWAY_V6, 7000, "from-host"),
        (HOST_V6, 7000, "from-host"),
        (&link_local, 7000, "from-host"),
    ] {
        let tried = |egress| connect_from_container(&daemon, &rootfs, address, port, egress);
        wait::until(&format!("the control, {address}"), || tried(true).contains(says).then_some(()));
        let closed = tried(false);
        assert!(!closed.contains(says), "{address}: {closed}");
    }
    on_host.kill().unwrap();
    on_host.wait().unwrap();
}

/// Root of the container has the default capabilities and cannot open its own egress.
#[test]
fn container_root_cannot_open_egress() {
    let (network, rootfs) = (Network::new(), Rootfs::busybox());
    network.configure("10-test.conflist", "test", &[]);
    let daemon = network.daemon("allow_egress = true");
    let script = format!(
        "busybox ip route add 198.51.100.0/24 via {GATEWAY}; busybox ip link set eth0 down; busybox ip addr add 10.9.9.9/24 dev eth0; \
         busybox ping -c 1 -W 1 {BEYOND}; busybox unshare -n true; busybox nc -w 2 {BEYOND} {BEYOND_PORT} </dev/null; \
         busybox ip route"
    );
    let reported = script_output(&daemon, on_cni(sh(&script).rootfs(&rootfs.reference())));
    assert!(!reported.contains(BEYOND_SAYS), "{reported}");
    assert!(reported.contains("default via 10.123.0.1") && !reported.contains("198.51.100.0"), "{reported}");
    assert!(reported.matches("Operation not permitted").count() >= 3, "{reported}");
    let raw = v1::Capabilities { add: vec!["NET_RAW".into()], ..v1::Capabilities::default() };
    let asked = |egress| RunRequest { capabilities: Some(raw.clone()), egress, ..sleeping("raw", &rootfs) };
    let refused = daemon.api.run(asked(false)).unwrap_err();
    assert!(refused.message().contains("CAP_NET_RAW could bypass the block on egress"), "{refused:?}");
    daemon.api.run(asked(true)).unwrap();
}

/// agent-cli accepts a network by name and publishes ports. `inspect` shows both.
#[test]
fn command_line_selects_networks_and_publishes_ports() {
    let (network, rootfs) = (Network::new(), Rootfs::busybox());
    network.configure("10-test.conflist", "test", &[]);
    network.configure("20-other.conflist", "other", &[]);
    let daemon = network.daemon("");
    let ran = |words: &str, command: &[&str]| {
        let words: Vec<&str> = words.split(' ').collect();
        let reference = rootfs.reference();
        let run = [&["run", "--rootfs", reference.as_str()], &words[..], &["--"], command].concat();
        integration::cli::run(&daemon.socket(), &run)
    };
    let up = "--network other -p 127.0.0.1:18090:8080 -p 18091:53/udp --hostname web.example --dns 10.9.9.9 --detach --id web";
    let started = ran(up, &["/bin/sleep", "100000"]);
    assert_eq!(started.status, 0, "{started:?}");
    let inspect = |more: &[&str]| integration::cli::run(&daemon.socket(), &[&["inspect", "web"], more].concat());
    let shown = inspect(&[]).stdout;
    for words in ["cni, other", "10.123.0.", "127.0.0.1:18090:8080/tcp, 18091:53/udp", "web.example", "10.9.9.9"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let json = inspect(&["--json"]).json();
    let json = json.as_array().map_or(&json, |all| &all[0]);
    assert_eq!(json["network_status"]["name"], "other");
    assert_eq!(json["network_status"]["ports"][1]["protocol"], "udp");
    assert_eq!(json["spec"]["dns"]["servers"][0], "10.9.9.9");
    let first = ran("--network cni", &["/bin/busybox", "ip", "-o", "-4", "addr", "show", "eth0"]);
    assert!(first.stdout.contains("10.123.0."), "{first:?}");
    let missing = ran("--network nope", &["/bin/true"]);
    assert!(missing.status != 0 && missing.stderr.contains("no network `nope` is configured"), "{missing:?}");
    let egress = ran("--network test --egress", &["/bin/true"]);
    assert!(egress.stderr.contains("allow_egress"), "{egress:?}");
}
