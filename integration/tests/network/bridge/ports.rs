//! Published and unpublished ports, reached from every location.

use executor_proto::v1::RunRequest;
use executor_proto::v1::port_mapping::Protocol;
use integration::network::{HOST, HOST_V6};
use integration::request::{RequestBuilder as _, program};
use integration::wait;

use super::Place::{Beyond, Container, Host};
use super::{
    BRIDGE_V4, BRIDGE_V6, INSIDE, PYTHON, World, addresses, assert_refused, field, on, published, raw, server,
    sleeping, tcp,
};

const PORT: u16 = 18_080;
/// A port that is not published.
const OTHER: u16 = 18_081;

/// A port published on all addresses responds over TCP and UDP on each host address: to the host, to the outside world,
/// to containers with egress, and to the container itself. As a control, a port that is not published does not respond.
#[test]
fn published_ports_answer_on_every_address() {
    let world = World::start();
    let ports = [published("", PORT, Protocol::Tcp), published("", PORT, Protocol::Udp)];
    let web = RunRequest { egress: true, ..server("web", &ports) };
    world.serve(web);
    world.api().started(sleeping("peer", true));
    world.api().started(sleeping("closed", false));
    let of_the_host = [HOST, HOST_V6, BRIDGE_V4, BRIDGE_V6];
    let with_loopback = [&of_the_host[..], &["127.0.0.1", "::1", "127.0.0.2"]].concat();
    for (from, ips) in [
        (Host, &with_loopback[..]),
        (Beyond, &[HOST, HOST_V6]),
        (Container("peer"), &of_the_host),
        (Container("web"), &of_the_host),
    ] {
        let targets = ips.iter().flat_map(|ip| {
            let answered = ["tcp", "udp"].map(|protocol| (protocol, *ip, PORT, Some("web ")));
            let control = ["tcp", "udp"].map(|protocol| (protocol, *ip, OTHER, None));
            [answered, control].concat()
        });
        world.assert_reached(from, &targets.collect::<Vec<_>>());
    }
    // Without egress, a container does not reach the host, not even a published port.
    let closed = of_the_host.map(|ip| ("tcp", ip, PORT, None));
    world.assert_reached(Container("closed"), &closed);
    world.delete_all();
}

/// A server sees the source address of a client outside the host.
#[test]
fn server_sees_its_clients_address() {
    let world = World::start();
    world.serve(server("web", &[tcp("", PORT)]));
    world.assert_reached(
        Beyond,
        &[("tcp", HOST, PORT, Some("web 192.0.2.2")), ("tcp", HOST_V6, PORT, Some("web 2001:db8::2"))],
    );
}

/// A port that is not published is reached by the host and by peers without egress, and not from outside. As a control,
/// the port is reached from outside after the rules are deleted.
#[test]
fn unpublished_ports_are_closed_to_outside() {
    let world = World::start();
    let (v4, v6) = addresses(&world.serve(server("web", &[tcp("", PORT)])));
    world.api().started(sleeping("peer", false));
    let targets =
        |answer| [&v4, &v6].map(|ip| ["tcp", "udp"].map(|protocol| (protocol, ip.as_str(), INSIDE, answer))).concat();
    world.assert_reached(Host, &targets(Some("web ")));
    world.assert_reached(Container("peer"), &targets(Some("web ")));
    // The outside world has a route to the container, and published ports respond.
    world.assert_reached(Beyond, &[("tcp", HOST, PORT, Some("web ")), ("tcp", HOST_V6, PORT, Some("web "))]);
    world.assert_reached(Beyond, &targets(None));
    world.network.on_host(&["nft", "flush", "chain", "inet", "ex-bridge", "forward"]);
    world.assert_reached(Beyond, &targets(Some("web ")));
}

/// If a container has published a port, another container cannot publish it. The port is free as soon as the first
/// container has exited.
#[test]
fn published_ports_have_one_owner() {
    let world = World::start();
    world.serve(server("web", &[tcp("", PORT)]));
    for ip in ["", "127.0.0.1", "::1", HOST] {
        let refused = world.api().run(server("second", &[tcp(ip, OTHER), tcp(ip, PORT)])).unwrap_err();
        assert_refused(&refused, "18080");
        assert!(refused.message().contains("is already published by container `web`"), "{refused:?}");
        assert_eq!(field(&refused), "ports");
    }
    // As a control, a different port can be published, and so can the same number with the other protocol.
    let others = [tcp("", OTHER), published("", PORT, Protocol::Udp)];
    world.serve(server("second", &others));
    for round in 0..5 {
        let previous = if round == 0 { "web".to_owned() } else { format!("web{}", round - 1) };
        world.api().stop(&previous, Some(0)).unwrap();
        world.api().wait(&previous).unwrap();
        let id = format!("web{round}");
        world.serve(server(&id, &[tcp("", PORT)]));
        let answer = format!("{id} ");
        let targets = ["127.0.0.1", "::1", HOST, HOST_V6].map(|ip| ("tcp", ip, PORT, Some(answer.as_str())));
        world.assert_reached(Host, &targets);
    }
    world.delete_all();
}

/// A port published on one address responds only on that address.
#[test]
fn host_ip_restricts_a_port() {
    let world = World::start();
    let own = [("127.0.0.1", PORT), ("::1", PORT + 1), (HOST, PORT + 2), (HOST_V6, PORT + 3), ("0.0.0.0", PORT + 4)];
    for (at, (ip, port)) in own.iter().enumerate() {
        world.serve(server(&format!("web{at}"), &[tcp(ip, *port)]));
    }
    let answers: Vec<String> = (0..own.len()).map(|at| format!("web{at} ")).collect();
    let targets = |ips: &[&'static str]| -> Vec<super::Target<'_>> {
        let pairs =
            ips.iter().flat_map(|ip| own.iter().enumerate().map(move |(at, (own, port))| (*ip, at, *own, *port)));
        let answered = pairs.map(|(ip, at, own, port)| {
            let is_own = ip == own || own == "0.0.0.0" && !ip.contains(':');
            ("tcp", ip, port, is_own.then_some(answers[at].as_str()))
        });
        answered.collect()
    };
    world.assert_reached(Host, &targets(&["127.0.0.1", "::1", HOST, HOST_V6, BRIDGE_V4, BRIDGE_V6]));
    world.assert_reached(Beyond, &targets(&[HOST, HOST_V6]));
    world.api().started(sleeping("peer", true));
    world.assert_reached(Container("peer"), &targets(&[HOST, HOST_V6, BRIDGE_V4, BRIDGE_V6]));
    let refused = world.api().run(server("foreign", &[tcp("198.51.100.1", PORT + 9)])).unwrap_err();
    assert_refused(&refused, "198.51.100.1");
    assert_eq!(field(&refused), "ports");
    world.delete_all();
}

/// Sends an SCTP INIT to the address and port from a raw socket. Kernels without SCTP also translate the address of
/// such a packet.
const SEND_SCTP: &str = r#"
import socket, struct, sys
def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
ports, init = struct.pack("!HHI", 40000, int(sys.argv[2]), 0), struct.pack("!BBHIIHHI", 1, 0, 20, 7, 65536, 1, 1, 1)
packet = ports + struct.pack("<I", crc32c(ports + bytes(4) + init)) + init
socket.socket(socket.AF_INET, socket.SOCK_RAW, 132).sendto(packet, (sys.argv[1], 0))
"#;
/// Prints the destination port of the first SCTP packet.
const RECEIVE_SCTP: &str = r#"
import socket
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, 132)
packet = raw.recv(2048)
print("to", int.from_bytes(packet[22:24], "big"))
"#;

/// SCTP packets reach the container port, and only through the published host port. In
/// `integration/vm/checks/53-sctp.sh` a real SCTP server responds.
#[test]
fn sctp_is_sent_to_the_container() {
    let world = World::start();
    let ports = vec![published("", PORT, Protocol::Sctp)];
    let (id, request) = ("sctp", program(PYTHON, &["-c", RECEIVE_SCTP]));
    world.api().started(raw(on("bridge", RunRequest { ports, ..request.id(id).grace_ms(0) })));
    let send = |port: u16| {
        let sent = world.network.on_beyond(&[PYTHON, "-c", SEND_SCTP, HOST, &port.to_string()]);
        assert_eq!(sent, "");
    };
    wait::until("a packet arrives", || {
        send(OTHER); // as a control: if this packet arrived, it would arrive first
        send(PORT);
        world.api().get(id).unwrap().result.map(drop)
    });
    assert_eq!(world.api().output(id).text(), format!("to {INSIDE}\n"));
    world.delete_all();
    world.assert_nothing_left();
}
