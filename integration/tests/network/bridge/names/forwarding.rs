//! Queries are forwarded only to servers that the egress rules allow the container itself to reach.

use executor_proto::v1::egress_rule::Protocol;
use executor_proto::v1::{Dns, EgressRule, PortRange, RunRequest, UpdateEgressRequest};
use integration::network::{BEYOND, BEYOND_V6, Network};
use integration::wait;

use super::{NXDOMAIN, OUTSIDE, World, on_bridge, sleeping};

fn rule(protocol: Protocol, destination: &str, port: u32) -> EgressRule {
    EgressRule {
        protocol: protocol.into(),
        destinations: vec![destination.into()],
        ports: vec![PortRange { first: port, last: port }],
        ..EgressRule::default()
    }
}

fn with_servers(request: RunRequest, servers: &[&str]) -> RunRequest {
    let servers = servers.iter().map(|&server| server.to_owned()).collect();
    RunRequest { dns: Some(Dns { servers, ..Dns::default() }), ..request }
}

impl World {
    fn update_egress(&self, id: &str, egress: bool, egress_rules: Vec<EgressRule>) {
        let request = UpdateEgressRequest { id: id.into(), egress, egress_rules };
        self.api().block_on(self.api().rpc().update_egress(request)).unwrap();
    }
}

/// Without egress, no query of any kind leaves the network. As a control, the same queries arrive with egress.
#[test]
fn closed_containers_forward_nothing() {
    let (world, _file) = World::with_host_servers(&[BEYOND], "");
    let server = world.name_server(BEYOND);
    world.api().started(sleeping("closed", false));
    world.api().started(with_servers(sleeping("asks", false), &[BEYOND, "127.0.0.1"]));
    world.api().started(with_servers(sleeping("names", false), &[BEYOND]));
    world.api().started(sleeping("open", true));
    let questions = |id: &str| {
        let mut questions = vec![on_bridge("udp", "A", id)];
        for kind in ["A", "AAAA", "TXT", "MX"] {
            for protocol in ["udp", "tcp"] {
                questions.push(on_bridge(protocol, kind, &format!("{kind}.{protocol}.secret.{id}.test")));
            }
        }
        questions.push(on_bridge("udp", "PTR", "9.2.0.192.in-addr.arpa"));
        questions
    };
    for id in ["closed", "asks", "names", "open"] {
        let questions = questions(id);
        let asked: Vec<&str> = questions.iter().map(String::as_str).collect();
        let answers = world.ask(id, &asked);
        assert!(answers[0].starts_with("NOERROR 10.61."), "control: the query is answered: {answers:?}");
        let arrived: Vec<String> = server
            .queries()
            .into_iter()
            .filter(|query| query.contains(&format!(".secret.{id}.")) || query.contains("arpa"))
            .collect();
        if id == "open" {
            assert_eq!(arrived.len(), asked.len() - 1, "{arrived:?}");
            assert_eq!(answers[1..3], [OUTSIDE, OUTSIDE]);
        } else {
            assert_eq!(arrived, Vec::<String>::new(), "{id}");
            assert!(answers[1..].iter().all(|answer| answer == NXDOMAIN), "{id}: {answers:?}");
        }
    }
    world.delete_all();
}

/// The rules apply to each server and protocol. An updated rule applies to the next query.
#[test]
fn rules_decide_about_name_servers() {
    let (world, file) = World::with_host_servers(&[BEYOND], "");
    let server = world.name_server(BEYOND);
    let rules = vec![rule(Protocol::Udp, BEYOND, 53)];
    world.api().started(RunRequest { egress_rules: rules, ..sleeping("client", true) });
    let ask = |name: &str| {
        let questions = ["udp", "tcp"].map(|protocol| on_bridge(protocol, "A", &format!("{protocol}.{name}.test")));
        let answers = world.ask("client", &[&questions[0], &questions[1]]);
        let arrived = ["udp", "tcp"].map(|protocol| server.has(&format!("{protocol} {protocol}.{name}.test")));
        (answers, arrived)
    };
    let (answers, arrived) = ask("one");
    assert_eq!((&*answers[0], arrived), (OUTSIDE, [true, false]), "{answers:?}");
    for (name, rules, arrives) in [
        ("two", vec![rule(Protocol::Tcp, BEYOND, 53)], [false, true]),
        ("three", vec![rule(Protocol::Udp, "192.0.2.3-192.0.2.9", 53)], [false, false]),
        ("four", vec![rule(Protocol::Udp, BEYOND, 54)], [false, false]),
        ("five", Vec::new(), [true, true]),
    ] {
        world.update_egress("client", true, rules);
        let (answers, arrived) = ask(name);
        assert_eq!(arrived, arrives, "{name}: {answers:?}");
    }
    world.update_egress("client", false, Vec::new());
    assert_eq!(ask("six"), (vec![NXDOMAIN.to_owned(); 2], [false, false]));
    world.update_egress("client", true, Vec::new());
    assert_eq!(ask("seven").1, [true, true]);
    // The host's server list is read again: its first server does not respond, and its second server does.
    let second = world.name_server(BEYOND_V6);
    file.set(&["192.0.2.99", BEYOND_V6]);
    let (answers, arrived) = ask("eight");
    assert_eq!((&*answers[0], arrived), (OUTSIDE, [false, false]));
    assert!(second.has("udp udp.eight.test"), "{:?}", second.queries());
    world.delete_all();
}

/// The servers of `--dns` are used instead of the host's servers. Peers are still found.
#[test]
fn requested_servers_are_asked_instead() {
    let (world, _file) = World::with_host_servers(&[BEYOND], "");
    let (of_host, requested) = (world.name_server(BEYOND), world.name_server(BEYOND_V6));
    world.api().started(with_servers(sleeping("client", true), &[BEYOND_V6]));
    let answers = world.ask("client", &[&on_bridge("udp", "A", "a.test"), &on_bridge("udp", "A", "client")]);
    assert!(answers[0] == OUTSIDE && answers[1].starts_with("NOERROR 10.61."), "{answers:?}");
    assert!(requested.has("udp a.test") && !of_host.has("udp a.test"));
    let resolv = world.script("client", "cat /etc/resolv.conf");
    assert!(resolv.starts_with("nameserver 10.61.0.1\n") && !resolv.contains(BEYOND_V6), "{resolv}");
    // A server on a loopback address is in the container itself.
    world.api().started(with_servers(sleeping("own", true), &["127.0.0.1"]));
    assert_eq!(world.script("own", "cat /etc/resolv.conf"), "nameserver 127.0.0.1\n");
    world.delete_all();
}

/// Responses larger than a datagram reach the client over TCP, or over UDP if the client accepts their size.
#[test]
fn large_answers_are_relayed_whole() {
    let (world, _file) = World::with_host_servers(&[BEYOND], "");
    let server = world.name_server(BEYOND);
    world.api().started(sleeping("client", true));
    let size = |size: &str| format!("{},{size}", on_bridge("udp", "A", "big.test"));
    let questions = [on_bridge("udp", "A", "big.test"), size("1232"), size("4096"), on_bridge("tcp", "A", "big.test")];
    let answers = world.ask("client", &questions.each_ref().map(String::as_str));
    assert_eq!(answers[..2], ["NOERROR TRUNCATED", "NOERROR TRUNCATED"]);
    for answer in &answers[2..] {
        assert_eq!(answer.split(' ').count(), 201, "{answer}");
    }
    assert!(server.has("tcp big.test"));
    // The usual client repeats the query over TCP.
    let found = world.script("client", "getent ahostsv4 big.test");
    assert!(found.contains("198.51.100.199"), "{found}");
    world.delete_all();
}

/// Responses with another id or question are ignored. If a server fails or does not respond, the next server is used.
#[test]
fn only_the_right_answer_is_relayed() {
    let (world, _file) = World::with_host_servers(&[BEYOND], "");
    let _server = world.name_server(BEYOND);
    world.api().started(sleeping("client", true));
    let ask = |name: &str| world.ask_one("client", &on_bridge("udp", "A", name));
    assert_eq!(ask("forged.test"), OUTSIDE);
    assert_eq!(ask("fail.test"), "SERVFAIL");
    assert_eq!(ask("silent.test"), "SERVFAIL");
    world.delete_all();
}

/// The host's name server may be on loopback, as with systemd-resolved. With open egress queries are forwarded to it;
/// with egress rules, a rule must allow its address.
#[test]
fn server_on_loopback_needs_open_egress() {
    let (world, _file) = World::with_host_servers(&["127.0.0.53"], "");
    let log = world.network.dir().join("queries-loopback");
    let arguments = [super::PYTHON, "-c", super::NAME_SERVER, log.to_str().unwrap(), "127.0.0.53"];
    let server = super::NameServer { child: world.network.start_on_host(&arguments), log };
    wait::until("the name server serves", || server.has("serves").then_some(()));
    world.api().started(sleeping("open", true));
    let all = vec![rule(Protocol::Udp, "10.0.0.0-126.255.255.255", 53), rule(Protocol::Udp, "128.0.0.0/1", 53)];
    world.api().started(RunRequest { egress_rules: all, ..sleeping("limited", true) });
    let loopback = vec![rule(Protocol::Udp, "127.0.0.53", 53)];
    world.api().started(RunRequest { egress_rules: loopback, ..sleeping("allowed", true) });
    for (id, answer) in [("open", OUTSIDE), ("limited", NXDOMAIN), ("allowed", OUTSIDE)] {
        assert_eq!(world.ask_one(id, &on_bridge("udp", "A", &format!("{id}.test"))), answer, "{id}");
        assert_eq!(server.has(&format!("udp {id}.test")), answer == OUTSIDE, "{id}");
    }
    world.delete_all();
}

/// On CNI networks the executor runs no name server.
#[test]
fn cni_networks_have_no_name_server() {
    let network = Network::new();
    network.configure("10-test.conflist", "test", &[]);
    let daemon = network.daemon("");
    let asked = RunRequest { network_name: "test".into(), ..sleeping("client", false) };
    daemon.api.started(asked);
    let resolv =
        integration::streams::executed(&daemon.api, integration::streams::script("client", "cat /etc/resolv.conf"));
    assert_eq!(resolv.unwrap().text(), format!("nameserver {}\nsearch test.example\n", integration::network::GATEWAY));
    let listening = network.on_host(&["ss", "-Hlntu", "sport", "=", ":53"]);
    assert_eq!(listening, "");
}
