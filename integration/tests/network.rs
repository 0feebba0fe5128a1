//! Networks of CNI, with the plugins of Debian's containernetworking-plugins: who reaches whom, what a container's
//! files say, and that nothing is left on any way out. Each test has a host of its own, see [`integration::network`].

#![allow(clippy::unwrap_used)] // where a test cannot go on, it fails

use executor_proto::v1::{self, Container, PortMapping, RunRequest};
use integration::daemon::Daemon;
use integration::network::{BEYOND, BEYOND_PORT, BEYOND_SAYS, GATEWAY, Network};
use integration::request::{Words, sh};
use integration::rootfs::Rootfs;
use integration::wait;

/// Says who it is to whoever connects, until it is stopped.
const SERVE: &str = "exec busybox nc -ll -p 8080 -e /bin/echo from-$0";

fn on_cni(request: RunRequest) -> RunRequest {
    RunRequest { network: v1::Network::Cni.into(), ..request }
}

fn server(id: &str, rootfs: &Rootfs) -> RunRequest {
    on_cni(sh(SERVE).id(id).rootfs(&rootfs.reference())).action(|run| run.args.push(id.into()))
}

/// The address of a container without the length of its prefix.
fn address(container: &Container) -> String {
    let status = container.network_status.clone().unwrap();
    status.addresses[0].split_once('/').unwrap().0.to_owned()
}

/// Runs a script to its end and answers what it printed.
fn seen(daemon: &Daemon, request: RunRequest) -> String {
    let container = daemon.api.ran(request);
    let output = daemon.api.output(&container.id);
    format!("{}{}", output.text(), String::from_utf8_lossy(&output.stderr))
}

/// What connecting from a container says.
fn reached(daemon: &Daemon, rootfs: &Rootfs, address: &str, port: u16, egress: bool) -> String {
    let script = format!("busybox nc -w 2 {address} {port} </dev/null");
    seen(daemon, RunRequest { egress, ..on_cni(sh(&script).rootfs(&rootfs.reference())) })
}

#[test]
fn containers_reach_one_another_and_the_host_reaches_published_ports() {
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

    let by_address = || reached(&daemon, &rootfs, &address(&published), 8080, false);
    wait::until("a peer is answered", || by_address().contains("from-web").then_some(()));
    for host in ["127.0.0.1", "192.0.2.1"] {
        let told = network.on_host(&["busybox", "nc", "-w", "2", host, "18080"]);
        // From loopback only where the plugin routes it, which this one does by its default.
        assert!(told.contains("from-web"), "{host}: {told}");
    }
    let unpublished = network.on_host(&["busybox", "nc", "-w", "2", "192.0.2.1", "18081"]);
    assert!(!unpublished.contains("from-web"), "the control: a port that is not published");

    daemon.api.delete("web", true).unwrap();
    assert_eq!(network.leftovers(daemon.setup()), Vec::<String>::new());
    for id in daemon.api.ids() {
        daemon.api.delete(&id, true).unwrap();
    }
    daemon.is_back_at(&before);
}

#[test]
fn egress_is_closed_unless_it_is_asked_for() {
    let (network, rootfs) = (Network::new(), Rootfs::busybox());
    network.configure("10-test.conflist", "test", &[]);
    let daemon = network.daemon("allow_egress = true");
    let mut on_host = network.start_on_host(&["busybox", "nc", "-ll", "-p", "7000", "-e", "/bin/echo", "from-host"]);
    let beyond = |egress| reached(&daemon, &rootfs, BEYOND, BEYOND_PORT, egress);
    assert!(beyond(true).contains(BEYOND_SAYS), "the control");
    let closed = beyond(false);
    assert!(!closed.contains(BEYOND_SAYS), "{closed}");
    // The host is no peer, be it by the address of its bridge or by another one.
    for address in [GATEWAY, "192.0.2.1"] {
        let host = |egress| reached(&daemon, &rootfs, address, 7000, egress);
        wait::until("the control", || host(true).contains("from-host").then_some(()));
        let closed = host(false);
        assert!(!closed.contains("from-host"), "{address}: {closed}");
    }
    on_host.kill().unwrap();
    on_host.wait().unwrap();
}
