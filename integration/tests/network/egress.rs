//! Egress rules: permitted and denied traffic in both address families, and replacement of rules while connections are
//! constantly opened.

use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use executor_proto::v1::egress_rule::Protocol;
use executor_proto::v1::{self, Container, EgressRule, PortRange, RunRequest, UpdateEgressRequest};
use integration::api::exit;
use integration::cli;
use integration::daemon::Daemon;
use integration::network::{GATEWAY, Network};
use integration::request::{RequestBuilder, sh};
use integration::rootfs::Rootfs;
use integration::streams::{executed, script};
use integration::wait;
use tonic::{Code, Status};

use super::{address, on_cni, server};

/// Addresses of the outside world. Each has servers on several ports.
const ADDRESSES: [&str; 9] = [
    "192.0.2.2",
    "192.0.2.3",
    "192.0.2.4",
    "192.0.2.5",
    "192.0.2.6",
    "2001:db8::2",
    "2001:db8::3",
    "2001:db8::4",
    "2001:db8::5",
];
const PORTS: [u16; 4] = [7001, 7002, 7003, 7004];

/// Servers in the outside world that respond with `yes` over TCP and UDP. They stop on drop.
struct Answering {
    stop: Arc<AtomicBool>,
    servers: Vec<JoinHandle<()>>,
}

impl Answering {
    fn start(network: &Network) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (tcp, udp) = network.enter_beyond(|| {
            for address in ADDRESSES {
                let width = if address.contains(':') { 128 } else { 32 };
                // The first address of each family already exists.
                let add = ["address", "add", &format!("{address}/{width}"), "dev", "in0", "nodad"];
                Command::new("ip").args(&add[..add.len() - usize::from(width == 32)]).output().unwrap();
            }
            let places = || ADDRESSES.iter().flat_map(|ip| PORTS.map(|port| (ip.parse::<IpAddr>().unwrap(), port)));
            let tcp: Vec<TcpListener> = places().map(|place| TcpListener::bind(place).unwrap()).collect();
            let udp: Vec<UdpSocket> = places().map(|place| UdpSocket::bind(place).unwrap()).collect();
            (tcp, udp)
        });
        let until = |stop: &Arc<AtomicBool>, mut turn: Box<dyn FnMut() -> bool + Send>| {
            let stop = Arc::clone(stop);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if !turn() {
                        // Without data, wait a moment to avoid busy-waiting.
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            })
        };
        tcp.iter().for_each(|listener| listener.set_nonblocking(true).unwrap());
        udp.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
        let answer = move || {
            let mut any = false;
            for listener in &tcp {
                match listener.accept() {
                    Ok((mut stream, _)) => {
                        any = true;
                        let _ = stream.write_all(b"yes\n");
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            any
        };
        let reply = move || {
            let mut any = false;
            for socket in &udp {
                if let Ok((_, from)) = socket.recv_from(&mut [0; 16]) {
                    any = true;
                    let _ = socket.send_to(b"yes\n", from);
                }
            }
            any
        };
        let servers = vec![until(&stop, Box::new(answer)), until(&stop, Box::new(reply))];
        Self { stop, servers }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.servers.drain(..).for_each(|server| drop(server.join()));
    }
}

/// An attempt to reach an address in the outside world.
#[derive(Clone, Copy, Debug)]
enum Probe {
    Tcp(&'static str, u16),
    Udp(&'static str, u16),
    Ping(&'static str),
}
use Probe::{Ping, Tcp, Udp};

/// Sends an echo request over an unprivileged socket, and prints `yes` when the reply arrives.
const PING: &str = r#"
    my ($ip) = @ARGV;
    my $six = $ip =~ /:/;
    socket(my $s, $six ? AF_INET6 : AF_INET, SOCK_DGRAM, $six ? 58 : 1) or die;
    my $to = $six ? pack_sockaddr_in6(0, inet_pton(AF_INET6, $ip)) : pack_sockaddr_in(0, inet_aton($ip));
    connect($s, $to) or die;
    defined send($s, pack("CCnnn", $six ? 128 : 8, 0, 0, 0, 1), 0) or die;
    my $ready = "";
    vec($ready, fileno($s), 1) = 1;
    select($ready, undef, undef, 2) or die;
    defined recv($s, my $reply, 64, 0) or die;
    print "yes\n";
"#;

impl Probe {
    /// Builds a shell command that prints `yes` if the address is reached.
    fn command(self) -> String {
        match self {
            Tcp(ip, port) => format!("timeout 5 bash -c 'exec 3<>/dev/tcp/{ip}/{port} && head -n 1 <&3'"),
            Udp(ip, port) => {
                format!("bash -c 'exec 3<>/dev/udp/{ip}/{port} && echo x >&3 && timeout 2 head -c 4 <&3'")
            }
            Ping(ip) => format!("perl -MSocket=:all -e '{PING}' {ip}"),
        }
    }
}

/// Probes addresses from a container, all at the same time. Expected addresses are probed until each succeeds, because
/// a busy machine may respond late. The other addresses are probed as often and must never succeed.
fn assert_reached(daemon: &Daemon, id: &str, probes: &[Probe], expected: &[bool], context: &str) {
    let numbered = probes.iter().enumerate();
    let commands: Vec<String> =
        numbered.map(|(at, probe)| format!("({} | sed s/^/{at}=/) &", probe.command())).collect();
    let all = format!("exec 2>/dev/null\n{}\nwait", commands.join("\n"));
    let mut reached = vec![false; probes.len()];
    wait::until(&format!("{context}: {id} reaches {expected:?} of {probes:?}"), || {
        let reported = executed(&daemon.api, script(id, &all)).unwrap().text();
        for (at, (probe, expected)) in probes.iter().zip(expected).enumerate() {
            reached[at] |= reported.lines().any(|line| line == format!("{at}=yes"));
            assert!(*expected || !reached[at], "{context}: {id} reaches {probe:?}");
        }
        (reached == expected).then_some(())
    });
}

fn rule(protocol: Protocol, destination: &str, ports: &[(u32, u32)]) -> EgressRule {
    EgressRule {
        protocol: protocol.into(),
        destinations: destination.split(',').map(str::to_owned).collect(),
        ports: ports.iter().map(|(first, last)| PortRange { first: *first, last: *last }).collect(),
        ..EgressRule::default()
    }
}

fn set(daemon: &Daemon, id: &str, egress: bool, egress_rules: &[EgressRule]) -> Result<Container, Status> {
    let request = UpdateEgressRequest { id: id.into(), egress, egress_rules: egress_rules.to_vec() };
    let answer = daemon.api.block_on(daemon.api.rpc().update_egress(request));
    answer.map(|answer| answer.into_inner().container.unwrap())
}

/// Builds a request for a waiting container that contains the host's programs and may send pings without privileges.
fn waiting(id: &str) -> RunRequest {
    let request = on_cni(sh("exec sleep 100000").id(id));
    RunRequest { sysctls: [("net.ipv4.ping_group_range".to_owned(), "0 65535".to_owned())].into(), ..request }
}

/// Each set of rules permits exactly the traffic that it names, up to the limits of its ranges. As a control, a
/// container with open egress reaches all targets.
#[test]
fn egress_rules_allow_only_named_destinations() {
    use Protocol::{All, Icmp, Icmpv6};
    let network = Network::new();
    network.configure_both_families("10-test.conflist", "test");
    let daemon = network.daemon("allow_egress = true");
    let _answering = Answering::start(&network);
    let icmp = |protocol, destination, kind, code| EgressRule {
        icmp_type: kind,
        icmp_code: code,
        ..rule(protocol, destination, &[])
    };
    let several = [
        rule(Protocol::Tcp, "192.0.2.2", &[(7001, 7001), (7004, 7004)]),
        EgressRule { log: true, ..rule(Protocol::Udp, "192.0.2.6,2001:db8::5", &[]) },
    ];
    let table: [(&[EgressRule], &[Probe], &[Probe]); 8] = [
        (
            &[rule(Protocol::Tcp, "192.0.2.3-192.0.2.5", &[(7002, 7003)])],
            &[Tcp("192.0.2.3", 7002), Tcp("192.0.2.4", 7003), Tcp("192.0.2.5", 7003)],
            &[
                Tcp("192.0.2.2", 7002),
                Tcp("192.0.2.6", 7002),
                Tcp("192.0.2.3", 7001),
                Tcp("192.0.2.3", 7004),
                Udp("192.0.2.3", 7002),
                Ping("192.0.2.3"),
                Tcp("2001:db8::3", 7002),
            ],
        ),
        (
            &[rule(Protocol::Udp, "192.0.2.4/31", &[(7002, 7002)])],
            &[Udp("192.0.2.4", 7002), Udp("192.0.2.5", 7002)],
            &[Udp("192.0.2.3", 7002), Udp("192.0.2.6", 7002), Udp("192.0.2.4", 7001), Tcp("192.0.2.4", 7002)],
        ),
        (
            &[rule(All, "2001:db8::3-2001:db8::4", &[])],
            &[Tcp("2001:db8::3", 7001), Udp("2001:db8::4", 7004), Ping("2001:db8::3")],
            &[Tcp("2001:db8::2", 7001), Udp("2001:db8::5", 7004), Ping("2001:db8::2"), Tcp("192.0.2.3", 7001)],
        ),
        (
            &[rule(Protocol::Tcp, "2001:db8::4/127", &[(7001, 7001)])],
            &[Tcp("2001:db8::4", 7001), Tcp("2001:db8::5", 7001)],
            &[Tcp("2001:db8::3", 7001), Tcp("2001:db8::4", 7002), Udp("2001:db8::4", 7001)],
        ),
        (
            &[icmp(Icmp, "192.0.2.3", Some(8), Some(0))],
            &[Ping("192.0.2.3")],
            &[Ping("192.0.2.2"), Tcp("192.0.2.3", 7001), Udp("192.0.2.3", 7001), Ping("2001:db8::3")],
        ),
        (
            &[icmp(Icmp, "192.0.2.3", Some(8), Some(1)), icmp(Icmp, "192.0.2.3", Some(13), None)],
            &[],
            &[Ping("192.0.2.3")],
        ),
        (
            &[icmp(Icmpv6, "2001:db8::3", Some(128), None), icmp(Icmp, "192.0.2.4", Some(-1), Some(-1))],
            &[Ping("2001:db8::3"), Ping("192.0.2.4")],
            &[Ping("2001:db8::2"), Ping("192.0.2.3"), Tcp("2001:db8::3", 7001)],
        ),
        (
            &several,
            &[Tcp("192.0.2.2", 7001), Tcp("192.0.2.2", 7004), Udp("192.0.2.6", 7001), Udp("2001:db8::5", 7001)],
            &[Tcp("192.0.2.2", 7002), Udp("192.0.2.2", 7001), Tcp("192.0.2.6", 7001), Udp("2001:db8::4", 7001)],
        ),
    ];
    let open = daemon.api.started(RunRequest { egress: true, ..waiting("open") });
    assert_eq!(open.egress_generation, 0);
    let closed = daemon.api.started(waiting("closed"));
    assert!(!closed.spec.unwrap().egress);
    for (number, (rules, allowed, refused)) in table.into_iter().enumerate() {
        let id = format!("ruled-{number}");
        let container = daemon.api.started(RunRequest { egress: true, egress_rules: rules.to_vec(), ..waiting(&id) });
        assert_eq!(container.spec.unwrap().egress_rules.len(), rules.len());
        let all = [allowed, refused].concat();
        let context = format!("{rules:?}");
        assert_reached(&daemon, "open", &all, &vec![true; all.len()], "control failed");
        let expected: Vec<bool> = (0..all.len()).map(|at| at < allowed.len()).collect();
        assert_reached(&daemon, &id, &all, &expected, &context);
        assert_reached(&daemon, "closed", &all, &vec![false; all.len()], &context);
        // The same rules are applied to a running container.
        let updated = set(&daemon, "closed", true, rules).unwrap();
        assert_eq!(updated.egress_generation, 2 * number as u64 + 1);
        assert_reached(&daemon, "closed", &all, &expected, &format!("updated: {context}"));
        assert!(!set(&daemon, "closed", false, &[]).unwrap().spec.unwrap().egress);
        daemon.api.delete(&id, true).unwrap();
    }
}

/// With rules, peers are reachable as they are without egress. The host is reachable only if a rule names it.
#[test]
fn egress_rules_do_not_affect_peers() {
    let (network, rootfs) = (Network::new(), Rootfs::busybox());
    network.configure("10-test.conflist", "test", &[]);
    let daemon = network.daemon("allow_egress = true");
    let mut on_host = network.start_on_host(&["busybox", "nc", "-ll", "-p", "7000", "-e", "/bin/echo", "yes"]);
    let peer = daemon.api.started(server("web", &rootfs));
    daemon.api.started(RunRequest {
        egress: true,
        egress_rules: vec![rule(Protocol::Tcp, "198.51.100.1", &[])],
        ..waiting("c")
    });
    let says = |ip: &str, port: u16, words: &str| {
        let reported = executed(&daemon.api, script("c", &format!("busybox nc -w 2 {ip} {port} </dev/null"))).unwrap();
        reported.text().contains(words)
    };
    wait::until("a peer is reached", || says(&address(&peer), 8080, "from-web").then_some(()));
    assert!(!says(GATEWAY, 7000, "yes"), "the host is not a peer");
    set(&daemon, "c", true, &[rule(Protocol::Tcp, GATEWAY, &[(7000, 7000)])]).unwrap();
    wait::until("the host is reached by a rule that names it", || says(GATEWAY, 7000, "yes").then_some(()));
    on_host.kill().unwrap();
    on_host.wait().unwrap();
}

/// While the rules are constantly replaced, connections that all rule sets permit never fail, connections that no rule
/// set permits never succeed, and an open connection stays open.
#[test]
fn replacement_has_no_gap() {
    let network = Network::new();
    network.configure_both_families("10-test.conflist", "test");
    let daemon = network.daemon("allow_egress = true");
    let _answering = Answering::start(&network);
    let allowed = || rule(Protocol::Tcp, "192.0.2.3", &[(7001, 7001)]);
    let script_of = |ip: &str, on: &str, off: &str| {
        let probe = format!("exec 3<>/dev/tcp/{ip}/7001 && read -t 10 word <&3 && [ \"$word\" = yes ]");
        format!("while :; do if ( {probe} ) 2>/dev/null; then {on}; else {off}; fi; done")
    };
    let tally = |word: &str| format!("echo {word}");
    let both = format!(
        "({}) & {}",
        script_of("192.0.2.3", &tally("allowed"), &tally("CUT")),
        script_of("192.0.2.4", &tally("PASSED"), &tally("refused"))
    );
    let request = on_cni(program_of_bash(&both).id("c"));
    daemon.api.started(RunRequest { egress: true, egress_rules: vec![allowed()], ..request });
    let count = |word: &str| daemon.api.logs_so_far("c").lines().filter(|line| *line == word).count();
    wait::until("both streams continue", || (count("allowed") > 5 && count("refused") > 5).then_some(()));
    // The number of rules changes from one to a thousand and back. The permitting rule is first, in the middle, or
    // last.
    let others =
        |many: u32| (0..many).map(|n| rule(Protocol::Tcp, &format!("198.51.{}.{}", n / 250, n % 250 + 1), &[]));
    let sets: [Vec<EgressRule>; 4] = [
        vec![allowed()],
        others(999).chain([allowed()]).collect(),
        [allowed()].into_iter().chain(others(300)).collect(),
        others(50).chain([allowed()]).chain(others(50)).collect(),
    ];
    let before = (count("allowed"), count("refused"));
    let mut rounds = 0;
    while rounds < 40 || count("allowed") < before.0 + 50 || count("refused") < before.1 + 50 {
        let updated = set(&daemon, "c", true, &sets[rounds % sets.len()]).unwrap();
        rounds += 1;
        assert_eq!(updated.egress_generation, rounds as u64);
    }
    assert_eq!((count("CUT"), count("PASSED")), (0, 0));
    // As a control, the test reports a failure and a success if they occur.
    set(&daemon, "c", true, &[rule(Protocol::Tcp, "192.0.2.4", &[])]).unwrap();
    wait::until("control failed", || (count("CUT") > 0 && count("PASSED") > 0).then_some(()));
}

fn program_of_bash(script: &str) -> RunRequest {
    integration::request::program("/bin/bash", &["-c", script])
}

/// An established connection stays open under every new set of rules.
#[test]
fn established_connection_stays() {
    let network = Network::new();
    network.configure("10-test.conflist", "test", &[]);
    let daemon = network.daemon("allow_egress = true");
    let listener = network.enter_beyond(|| TcpListener::bind("192.0.2.2:7100").unwrap());
    let talk = "exec 3<>/dev/tcp/192.0.2.2/7100; while read line <&3; do echo $line >&3; done";
    daemon.api.started(RunRequest { egress: true, ..on_cni(program_of_bash(talk).id("c")) });
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut echo = |words: &str| {
        stream.write_all(words.as_bytes()).unwrap();
        let mut back = vec![0; words.len()];
        std::io::Read::read_exact(&mut stream, &mut back).unwrap();
        assert_eq!(back, words.as_bytes());
    };
    echo("open\n");
    set(&daemon, "c", true, &[rule(Protocol::Tcp, "198.51.100.1", &[])]).unwrap();
    echo("by rules\n");
    set(&daemon, "c", false, &[]).unwrap();
    echo("closed\n");
    let again = executed(&daemon.api, script("c", "busybox nc -w 2 192.0.2.2 7100 </dev/null")).unwrap();
    assert_ne!(again.exit, Some(Ok(0)), "control: a new connection is refused");
}

/// After executord and its launcher were killed, the rules still apply and are shown. An event reports an update, and
/// the result of the container includes it.
#[test]
fn rules_outlive_executord_and_its_launcher() {
    let network = Network::new();
    network.configure_both_families("10-test.conflist", "test");
    let mut daemon = network.daemon("allow_egress = true");
    let _answering = Answering::start(&network);
    daemon.api.started(RunRequest { egress: true, ..waiting("c") });
    let cursor = daemon.api.info().cursor;
    let rules = [rule(Protocol::Tcp, "192.0.2.3/32", &[(7001, 7001)])];
    set(&daemon, "c", true, &rules).unwrap();
    let reported = daemon.api.events_after(cursor).until(|answer| answer.event.is_some());
    let event = reported[0].event.clone().unwrap();
    assert_eq!((event.kind(), event.egress_generation), (v1::event::Kind::EgressUpdated, 1));
    let both = [Tcp("192.0.2.3", 7001), Tcp("192.0.2.4", 7001)];
    assert_reached(&daemon, "c", &both, &[true, false], "");
    daemon.kill();
    daemon.start_again();
    let kept = wait::until("the container is known", || daemon.api.get("c").ok());
    assert_eq!((kept.egress_generation, kept.spec.unwrap().egress_rules[0].destinations[0].as_str()), (1, "192.0.2.3"));
    assert_reached(&daemon, "c", &both, &[true, false], "");
    wait::until("the shim is connected", || set(&daemon, "c", true, &[]).ok());
    assert_reached(&daemon, "c", &both, &[true, true], "");
    let ended = daemon.api.stop("c", Some(0)).and_then(|_| daemon.api.wait("c")).unwrap();
    assert_eq!(ended.egress_generation, 2);
    let late = set(&daemon, "c", true, &rules).unwrap_err();
    assert_eq!(late.code(), Code::FailedPrecondition, "{late:?}");
}

/// Invalid rules are refused with their field, at a start and at an update, and change nothing.
#[test]
fn invalid_egress_rules_are_refused() {
    let network = Network::new();
    network.configure("10-test.conflist", "test", &[]);
    let daemon = network.daemon("allow_egress = true");
    daemon.api.started(RunRequest { egress: true, ..waiting("open") });
    daemon.api.started(sh("exec sleep 100000").id("alone"));
    let bad = [
        rule(Protocol::Icmp, "192.0.2.1-192.0.2.0,x,2001:db8::1", &[(0, 0)]),
        EgressRule { icmp_type: Some(256), ..rule(Protocol::Tcp, "", &[(2, 1)]) },
    ];
    let fields = [
        "egress_rules[0].destinations[0]",
        "egress_rules[0].destinations[1]",
        "egress_rules[0].destinations[2]",
        "egress_rules[0].ports",
        "egress_rules[1].destinations[0]",
        "egress_rules[1].icmp_type",
        "egress_rules[1].ports[0]",
    ];
    let reported = |status: &Status| {
        let details = tonic_types::StatusExt::get_details_bad_request(status).unwrap();
        let mut fields: Vec<String> = details.field_violations.into_iter().map(|violation| violation.field).collect();
        fields.sort();
        fields.dedup();
        fields
    };
    let run = RunRequest { egress: true, egress_rules: bad.to_vec(), ..waiting("bad") };
    let refused = daemon.api.run(run).unwrap_err();
    assert!(fields.iter().all(|field| reported(&refused).contains(&(*field).to_owned())), "{:?}", reported(&refused));
    let refused = set(&daemon, "open", true, &bad).unwrap_err();
    assert!(fields.iter().all(|field| reported(&refused).contains(&(*field).to_owned())), "{:?}", reported(&refused));
    let good = rule(Protocol::Tcp, "192.0.2.1", &[]);
    let many = set(&daemon, "open", true, &vec![good.clone(); 1001]).unwrap_err();
    assert!(many.message().contains("at most 1000"), "{many:?}");
    assert_eq!(reported(&set(&daemon, "open", false, std::slice::from_ref(&good)).unwrap_err()), ["egress_rules"]);
    assert_eq!(reported(&set(&daemon, "alone", true, std::slice::from_ref(&good)).unwrap_err()), ["egress"]);
    assert_eq!(set(&daemon, "no-such", true, &[]).unwrap_err().code(), Code::NotFound);
    assert_eq!(daemon.api.get("open").unwrap().egress_generation, 0);
    // The kernel accepts the maximum number of rules.
    let wide = EgressRule {
        destinations: (0..100).map(|n| format!("198.51.100.{n}")).collect(),
        ports: (1..=100).map(|port| PortRange { first: port, last: port + 1 }).collect(),
        ..rule(Protocol::Tcp, "", &[])
    };
    assert_eq!(set(&daemon, "open", true, &[wide]).unwrap().egress_generation, 1);
    // A container with rules may not have a capability that could remove them.
    let raw = v1::Capabilities { add: vec!["NET_RAW".into()], ..v1::Capabilities::default() };
    let asked =
        |egress_rules| RunRequest { capabilities: Some(raw.clone()), egress: true, egress_rules, ..waiting("raw") };
    let refused = daemon.api.run(asked(vec![good.clone()])).unwrap_err();
    assert!(refused.message().contains("CAP_NET_RAW could bypass the egress rules"), "{refused:?}");
    daemon.api.run(asked(Vec::new())).unwrap();
    assert_eq!(reported(&set(&daemon, "raw", true, &[good]).unwrap_err()), ["capabilities.add"]);
}

/// agent-cli accepts the JSON of security groups, and shows and replaces rules.
#[test]
fn command_line_takes_security_groups() {
    let network = Network::new();
    network.configure("10-test.conflist", "test", &[]);
    let daemon = network.daemon("allow_egress = true");
    let file = network.dir().join("rules.json");
    let path = file.to_str().unwrap();
    std::fs::write(&file, r#"[{"protocol":"tcp","destination":"192.0.2.2","ports":"9000","description":"test"}]"#)
        .unwrap();
    let agent = |arguments: &[&str]| cli::run(&daemon.socket(), arguments);
    let rules = ["run", "--network", "test", "--egress-rules", path];
    let up = agent(&[&rules[..], &["--detach", "--id", "c", "--", "/bin/sleep", "100000"]].concat());
    assert_eq!(up.status, 0, "{up:?}");
    assert_eq!(agent(&["egress", "show", "c"]).stdout, "tcp 192.0.2.2 9000\n");
    let connect = |port: &str| agent(&["exec", "c", "--", "/bin/busybox", "nc", "-w", "2", "192.0.2.2", port]).stdout;
    let is_open = || connect("9000").contains("from-beyond").then_some(());
    wait::until("egress is open", is_open);
    let group = r#"{"name":"g","rules":[{"protocol":"udp","destination":"192.0.2.0/24, 10.0.0.1-10.0.0.9","ports":"53,60-70","log":true}]}"#;
    std::fs::write(&file, group).unwrap();
    let changed = agent(&["egress", "set", "c", "--egress-rules", path]);
    assert_eq!(changed.stdout, "udp 192.0.2.0/24,10.0.0.1-10.0.0.9 53,60-70 log\n", "{changed:?}");
    assert!(!connect("9000").contains("from-beyond"));
    let json = agent(&["egress", "show", "c", "--json"]).json();
    assert_eq!((&json["egress_generation"], &json["egress_rules"][0]["ports"][1]["last"]), (&1.into(), &70.into()));
    let shown = agent(&["inspect", "c"]).stdout;
    assert!(shown.contains("with egress by rules") && shown.contains("53,60-70 log"), "{shown}");
    // The sysctl exists only in the initial network namespace, and this host is another network namespace.
    assert!(shown.contains("egress_rules[0].log: ") && shown.contains("nf_log_all_netns"), "{shown}");
    assert_eq!(agent(&["egress", "set", "c", "--closed"]).stdout, "closed\n");
    assert!(!agent(&["inspect", "c"]).stdout.contains("nf_log_all_netns"));
    assert_eq!(agent(&["egress", "set", "c", "--open"]).stdout, "open\n");
    wait::until("egress is open again", is_open);
    std::fs::write(&file, "[]").unwrap();
    for arguments in [&["egress", "set", "c", "--egress-rules", path][..], &[&rules[..], &["--", "/bin/true"]].concat()]
    {
        let refused = agent(arguments);
        assert!(refused.status != 0 && refused.stderr.contains("has no rules"), "{refused:?}");
    }
    std::fs::write(&file, r#"[{"protocol":"icmp","destination":"2001:db8::1"}]"#).unwrap();
    let refused = agent(&["egress", "set", "c", "--egress-rules", path]);
    assert!(
        refused.stderr.contains("--egress-rules (number 1)") && refused.stderr.contains("use the protocol icmpv6"),
        "{refused:?}"
    );
    assert_eq!(exit(&daemon.api.stop("c", Some(0)).and_then(|_| daemon.api.wait("c")).unwrap()), Err(9));
}
