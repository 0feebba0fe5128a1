//! Queries from outside of the network, and hostile queries from its containers.

use integration::metrics;
use integration::network::Network;
use integration::request::{RequestBuilder as _, program};
use integration::streams::{executed, start};

use super::super::{BLUE, BRIDGE, POLICY, PYTHON, on};
use super::{ASK, NXDOMAIN, World, addresses, on_bridge, sleeping, with_aliases};

/// Sends malformed packets, then a valid query. The response shows that the server still works.
const MALFORMED: &str = r#"
import random, socket, struct, sys
server = (sys.argv[1], 53)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
random.seed(33)
header = struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0)
loop = header + b"\xc0\x0c" + struct.pack("!HH", 1, 1)
answer = struct.pack("!HHHHHH", 7, 0x8180, 1, 0, 0, 0) + b"\x01a\0" + struct.pack("!HH", 1, 1)
many = struct.pack("!HHHHHH", 7, 0x0100, 65535, 65535, 65535, 65535) + b"\x01a\0" + struct.pack("!HH", 1, 1)
update = struct.pack("!HHHHHH", 7, 0x2800, 1, 0, 0, 0) + b"\x01a\0" + struct.pack("!HH", 6, 1)
chaos = header + b"\x07version\x04bind\0" + struct.pack("!HH", 16, 3)
label = header + b"\x40" + b"a" * 64 + b"\0" + struct.pack("!HH", 1, 1)
packets = [b"", b"\0", header, loop, answer, many, update, chaos, label, b"\xff" * 1232, b"\0" * 9000]
packets += [random.randbytes(random.randrange(200)) for _ in range(300)]
packets += [header + random.randbytes(random.randrange(100)) for _ in range(300)]
for packet in packets:
    udp.sendto(packet, server)
    stream = socket.create_connection(server, 3)
    stream.sendall(struct.pack("!H", len(packet)) + packet)
    stream.close()
for length, data in [(0, b""), (65535, b"x" * 65535), (100, b"y")]:
    stream = socket.create_connection(server, 3)
    try:
        stream.sendall(struct.pack("!H", length) + data)
    except OSError:
        pass
    stream.close()
udp.settimeout(1)
codes = set()
try:
    while True:
        reply = udp.recv(65535)
        assert reply[2] & 0x80 and len(reply) < 1232, reply
        codes.add(reply[3] & 15)
except OSError:
    pass
print(sorted(codes))
"#;

/// Sends queries as fast as possible, or opens connections, until it is stopped.
const FLOOD: &str = r#"
import socket, sys, time
server, kind, query = (sys.argv[1], 53), sys.argv[2], bytes.fromhex("0007010000010000000000000162046573740000010001")
print("up", flush=True)
held = []
while True:
    try:
        if kind == "udp":
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            udp.connect(server)
            for _ in range(10000):
                udp.send(query)
        else:
            held.append(socket.create_connection(server, 3))
            held = held[-500:]
    except OSError:
        pass
"#;

/// The gateway responds only to containers of its network, and not to the host, other hosts, other networks or foreign
/// namespaces.
#[test]
fn only_the_own_network_is_answered() {
    let world = World::configured(&format!("{BRIDGE}{BLUE}"));
    let (web, _) = addresses(&world.api().started(with_aliases(sleeping("web", true), &["db"])));
    world.api().started(sleeping("client", true));
    world.api().started(on("blue", sleeping("blue", true)));
    let questions = [on_bridge("udp", "A", "db"), on_bridge("tcp", "A", "db")];
    let arguments = [PYTHON, "-c", ASK, &questions[0], &questions[1]];
    let found = format!("NOERROR {web}");
    assert_eq!(world.ask("client", &[&questions[0], &questions[1]]), [&*found, &*found], "control failed");
    assert_eq!(world.network.on_host(&arguments), "NOTHING\nNOTHING\n");
    assert_eq!(world.network.on_beyond(&arguments), "NOTHING\nNOTHING\n");
    assert_eq!(world.ask("blue", &[&questions[0], &questions[1]]), ["NOTHING", "NOTHING"]);
    // The gateway of the container's own network responds, and knows only names of its network.
    let own = ["10.62.0.1,udp,A,blue", "10.62.0.1,udp,A,web"];
    let answers = world.ask("blue", &own);
    assert!(answers[0].starts_with("NOERROR 10.62."), "{answers:?}");
    assert!(!answers[1].starts_with("NOERROR"), "{answers:?}");
    // A rule blocks the outside world. Without the rule, the name server still refuses queries from outside by their
    // source address, as a second line of defence.
    let rules = world.network.on_host(&["nft", "list", "chain", "inet", "ex-bridge", "input"]);
    assert!(rules.contains("10.61.0.1") && rules.contains("53"), "{rules}");
    world.network.on_host(&["nft", "flush", "chain", "inet", "ex-bridge", "input"]);
    assert_eq!(world.network.on_beyond(&arguments), "NOTHING\nNOTHING\n");
    assert_eq!(world.ask("client", &[&questions[0]]), [found]);
    world.delete_all();
}

/// Malformed packets are dropped or cause an error response, and do not affect other containers.
#[test]
fn malformed_packets_are_harmless() {
    let world = World::start();
    let (web, _) = addresses(&world.api().started(sleeping("web", false)));
    world.api().started(sleeping("attacker", false));
    let codes = executed(world.api(), start("attacker", PYTHON, &["-c", MALFORMED, "10.61.0.1"])).unwrap();
    let codes = codes.text();
    // Response codes: format error (1), not implemented (4), refused (5).
    assert!(codes.contains('1') && codes.contains('4') && codes.contains('5'), "{codes}");
    assert_eq!(world.ask_one("web", &on_bridge("udp", "A", "web")), format!("NOERROR {web}"));
    assert_eq!(world.ask_one("web", &on_bridge("tcp", "A", "nope")), NXDOMAIN);
    world.delete_all();
}

/// If a container floods the name server, other containers still get their responses, over UDP and over TCP.
#[test]
fn flooding_container_stops_no_other() {
    let network = Network::forwarding();
    let setup = network.without_cni(POLICY, "");
    setup.replace_config(&format!("[policy]\n{}{POLICY}\n{}", network.policy(), metrics::table(&setup)));
    let world = World { daemon: setup.start(), network };
    let (web, _) = addresses(&world.api().started(sleeping("web", false)));
    let found = format!("NOERROR {web}");
    for kind in ["udp", "tcp"] {
        let flood = program(PYTHON, &["-c", FLOOD, "10.61.0.1", kind]).id(kind).grace_ms(0);
        world.api().up(on("bridge", flood));
    }
    for _ in 0..20 {
        assert_eq!(world.ask_one("web", &on_bridge("tcp", "A", "web")), found);
        // On a busy machine a datagram may be lost; resolvers ask again. Without limits nearly all are lost.
        let mut attempts = (0..3).map(|_| world.ask_one("web", &on_bridge("udp", "A", "web")));
        assert!(attempts.any(|answer| answer == found), "no response to three queries");
    }
    let limited = metrics::value(&world.daemon, "executor_name_queries_total{result=\"limited\"}");
    assert!(limited > 0.0, "control: the limits are exceeded");
    world.delete_all();
}
