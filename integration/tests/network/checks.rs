//! Checks of containers on a CNI network connect to the container's own address on that network.

use executor_proto::v1::check::Kind;
use executor_proto::v1::{Check, Checks, RunRequest, TcpCheck};
use integration::network::Network;
use integration::request::{RequestBuilder, sh};
use integration::rootfs::Rootfs;
use integration::wait;

use super::{address, on_cni, server};

#[test]
fn check_connects_to_container_address() {
    let (network, rootfs) = (Network::new(), Rootfs::busybox());
    network.configure("10-test.conflist", "test", &[]);
    let daemon = network.daemon("");
    let check = || {
        let interval = Some(prost_types::Duration { seconds: 0, nanos: 500_000_000 });
        Check { kind: Some(Kind::Tcp(TcpCheck { port: 8080 })), interval, ..Check::default() }
    };
    let with =
        |request| RunRequest { checks: Some(Checks { readiness: vec![check()], ..Checks::default() }), ..request };
    let serves = daemon.api.started(with(server("serves", &rootfs)));
    assert!(!address(&serves).is_empty());
    // The check works without egress.
    wait::until("the container is ready", || daemon.api.get("serves").unwrap().ready.then_some(()));
    // As a control, a server that listens only on loopback is not reachable on the network.
    let alone = sh("exec busybox httpd -f -p 127.0.0.1:8080");
    daemon.api.started(with(on_cni(alone.id("alone").rootfs(&rootfs.reference()))));
    wait::until("the check of the container fails", || {
        let alone = daemon.api.get("alone").unwrap();
        alone.check_statuses.first().is_some_and(|status| status.failures > 2).then_some(())
    });
    assert!(!daemon.api.get("alone").unwrap().ready);
    for id in ["serves", "alone"] {
        daemon.api.delete(id, true).unwrap();
    }
}
