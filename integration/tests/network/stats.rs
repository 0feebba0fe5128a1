//! Tests the traffic counters of a container's own network.

use executor_proto::v1::check::Kind;
use executor_proto::v1::{Check, Checks, NetworkUsage, RunRequest, StatsRequest, TcpCheck};
use integration::network::Network;
use integration::request::sleeper;
use integration::rootfs::Rootfs;
use integration::wait;

use super::server;

/// Checks count as traffic of the container that they connect to. As a control, a container without a network has no
/// such counters.
#[test]
fn traffic_is_counted_until_container_exit() {
    let (network, rootfs) = (Network::new(), Rootfs::busybox());
    network.configure("10-test.conflist", "test", &[]);
    let daemon = network.daemon("");
    let interval = Some(prost_types::Duration { seconds: 0, nanos: 500_000_000 });
    let check = Check { kind: Some(Kind::Tcp(TcpCheck { port: 8080 })), interval, ..Check::default() };
    let checks = Some(Checks { readiness: vec![check], ..Checks::default() });
    daemon.api.started(RunRequest { checks, ..server("serves", &rootfs) });
    daemon.api.started(sleeper("alone"));
    let traffic = |id: &str| -> Option<NetworkUsage> {
        let request = StatsRequest { ids: vec![id.into()], ..StatsRequest::default() };
        let stats = daemon.api.block_on(daemon.api.rpc().stats(request)).unwrap().into_inner();
        stats.containers.first()?.usage?.network
    };
    let seen = wait::until("the checks are counted", || {
        traffic("serves").filter(|traffic| traffic.received_packets > 0 && traffic.sent_bytes > 0)
    });
    assert_eq!(traffic("alone"), None);
    for (id, on_network) in [("serves", true), ("alone", false)] {
        daemon.api.stop(id, Some(0)).unwrap();
        let end = daemon.api.wait(id).unwrap().result.unwrap().usage.unwrap().network;
        assert_eq!(end.is_some(), on_network, "{id}");
        assert!(end.is_none_or(|end| end.received_bytes >= seen.received_bytes), "{end:?}");
        daemon.api.delete(id, true).unwrap();
    }
}
