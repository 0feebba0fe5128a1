//! Names of containers on built-in networks, and queries that are forwarded to the host's name servers. The queries
//! come from a program that shares no code with the executor, and from common programs.

mod forwarding;
mod strangers;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Child;

use executor_client::Pods;
use executor_proto::v1::{self, CreatePodRequest, RunRequest};
use integration::cli;
use integration::network::Network;
use integration::streams::{executed, script, start};
use integration::wait;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use tempfile::NamedTempFile;

use super::{BRIDGE_V4, BRIDGE_V6, POLICY, PYTHON, World, addresses, sleeping};

const ASK: &str = include_str!("names/ask.py");
const NAME_SERVER: &str = include_str!("names/name_server.py");
/// Result that the name server in the outside world returns.
const OUTSIDE: &str = "NOERROR 198.51.100.7";
const NXDOMAIN: &str = "NXDOMAIN";

/// Builds a query to the gateway of the network `bridge`.
fn on_bridge(protocol: &str, kind: &str, name: &str) -> String {
    format!("{BRIDGE_V4},{protocol},{kind},{name}")
}

impl World {
    /// Starts a daemon on a host with these name servers. Only this thread and its children see them.
    fn with_host_servers(servers: &[&str], networks: &str) -> (Self, HostFile) {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        let file = HostFile(NamedTempFile::new().unwrap());
        fs::set_permissions(file.0.path(), fs::Permissions::from_mode(0o644)).unwrap();
        file.set(servers);
        mount(Some(file.0.path()), "/etc/resolv.conf", none, MsFlags::MS_BIND, none).unwrap();
        (Self::configured(networks), file)
    }

    /// Sends queries from a container, one after the other.
    fn ask(&self, id: &str, questions: &[&str]) -> Vec<String> {
        let asked = executed(self.api(), start(id, PYTHON, &[&["-c", ASK], questions].concat())).unwrap();
        asked.text().lines().map(str::to_owned).collect()
    }

    /// Sends one query from a container.
    fn ask_one(&self, id: &str, question: &str) -> String {
        self.ask(id, &[question]).concat()
    }

    /// Runs a script in a container and returns its output.
    fn script(&self, id: &str, text: &str) -> String {
        executed(self.api(), script(id, text)).unwrap().text()
    }

    /// Starts a name server in the outside world.
    fn name_server(&self, address: &str) -> NameServer {
        let log = self.network.dir().join(format!("queries-{address}"));
        let arguments = [PYTHON, "-c", NAME_SERVER, log.to_str().unwrap(), address];
        let server = NameServer { child: self.network.start_on_beyond(&arguments), log };
        wait::until("the name server serves", || server.queries().contains(&"serves".to_owned()).then_some(()));
        server
    }
}

/// A replacement for the host's resolv.conf.
struct HostFile(NamedTempFile);

impl HostFile {
    fn set(&self, servers: &[&str]) {
        let lines: String = servers.iter().map(|server| format!("nameserver {server}\n")).collect();
        fs::write(self.0.path(), lines).unwrap();
    }
}

/// A name server in the outside world, which is killed on drop.
struct NameServer {
    child: Child,
    log: std::path::PathBuf,
}

impl NameServer {
    /// Returns the queries received so far, each with its protocol.
    fn queries(&self) -> Vec<String> {
        fs::read_to_string(&self.log).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn has(&self, query: &str) -> bool {
        self.queries().iter().any(|one| one == query)
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn with_aliases(request: RunRequest, aliases: &[&str]) -> RunRequest {
    RunRequest { network_aliases: aliases.iter().map(|&alias| alias.to_owned()).collect(), ..request }
}

/// Returns the name for a reverse lookup of an address.
fn reverse(ip: &str) -> String {
    match ip.parse().unwrap() {
        std::net::IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        std::net::IpAddr::V6(ip) => {
            let nibbles: String = ip.octets().iter().map(|byte| format!("{byte:02x}")).collect();
            nibbles.chars().rev().map(|nibble| format!("{nibble}.")).collect::<String>() + "ip6.arpa"
        }
    }
}

/// A container without egress finds a peer by id, host name and alias, in upper or lower case, over UDP and TCP and in
/// both address families. Queries for other record types return an empty response, and unknown names do not exist. When
/// a container is removed, its names are removed.
#[test]
fn peers_are_found_by_every_name() {
    let world = World::start();
    let web =
        RunRequest { hostname: "www.example".into(), ..with_aliases(sleeping("web_1", false), &["db", "Cache-2"]) };
    let (v4, v6) = addresses(&world.api().started(web));
    world.api().started(sleeping("client", false));
    let found = format!("NOERROR {v4}");
    for name in ["web_1", "WEB_1", "web_1.", "db", "cache-2", "CACHE-2", "www.example"] {
        let questions = [on_bridge("udp", "A", name), on_bridge("tcp", "A", name), on_bridge("udp", "AAAA", name)];
        let questions: Vec<&str> = questions.iter().map(String::as_str).collect();
        let expected = [found.clone(), found.clone(), format!("NOERROR {v6}")];
        assert_eq!(world.ask("client", &questions), expected, "{name}");
    }
    let over_v6 = [format!("{BRIDGE_V6},udp,A,db"), format!("{BRIDGE_V6},tcp,A,db")];
    assert_eq!(world.ask("client", &[&over_v6[0], &over_v6[1]]), [&*found, &*found]);
    for (question, expected) in [
        (on_bridge("udp", "PTR", &reverse(&v4)), "NOERROR web_1"),
        (on_bridge("udp", "PTR", &reverse(&v6)), "NOERROR web_1"),
        (on_bridge("udp", "PTR", &reverse(BRIDGE_V4)), NXDOMAIN),
        (on_bridge("udp", "MX", "db"), "NOERROR"),
        (on_bridge("udp", "A", &reverse(&v4)), "NOERROR"),
        (on_bridge("udp", "A", "example"), NXDOMAIN),
        (on_bridge("udp", "A", "db.example"), NXDOMAIN),
        (on_bridge("udp", "AXFR", "db"), "REFUSED"),
    ] {
        assert_eq!(world.ask_one("client", &question), expected, "{question}");
    }
    let resolv = world.script("client", "cat /etc/resolv.conf");
    assert_eq!(resolv, format!("nameserver {BRIDGE_V4}\nnameserver {BRIDGE_V6}\noptions ndots:0\n"));
    for program in
        ["busybox nslookup db", "busybox nslookup web_1", "getent ahostsv4 DB", "getent ahostsv4 www.example"]
    {
        let shown = world.script("client", program);
        assert!(shown.contains(&v4), "{program}: {shown}");
    }
    let shown = world.script("client", &format!("getent hosts {v4}"));
    assert!(shown.contains("web_1"), "{shown}");

    let inspected = cli::run(&world.daemon.socket(), &["network", "inspect", "bridge", "--json"]).json();
    let names = inspected["containers"].as_array().unwrap().iter().map(|one| one["names"].clone());
    let expected = [serde_json::json!(["client"]), serde_json::json!(["web_1", "www.example", "db", "cache-2"])];
    assert_eq!(names.collect::<Vec<_>>(), expected);
    world.api().stop("web_1", Some(0)).unwrap();
    for name in ["web_1", "db", "www.example"] {
        assert_eq!(world.ask_one("client", &on_bridge("udp", "A", name)), NXDOMAIN, "{name}");
    }
    assert_eq!(world.ask_one("client", &on_bridge("udp", "PTR", &reverse(&v4))), NXDOMAIN);
    world.delete_all();
}

/// A container that was attached to the network while it was warm has names and can send queries, like other
/// containers.
#[test]
fn warm_containers_have_names() {
    let world = World::configured("[warm_pool]\nnetwork = \"bridge\"\n");
    let (web, _) = addresses(&world.api().started(with_aliases(sleeping("web", false), &["db"])));
    world.api().started(sleeping("client", false));
    assert_eq!(world.ask_one("client", &on_bridge("udp", "A", "db")), format!("NOERROR {web}"));
    assert!(world.script("client", "cat /etc/resolv.conf").starts_with(&format!("nameserver {BRIDGE_V4}")));
    for id in world.api().ids() {
        world.api().delete(&id, true).unwrap();
    }
}

/// If several containers have the same alias, a query returns all of them, in changing order. An id belongs to one
/// container only.
#[test]
fn shared_alias_finds_all_containers() {
    let world = World::start();
    let (one, _) = addresses(&world.api().started(with_aliases(sleeping("one", false), &["db"])));
    let (two, _) = addresses(&world.api().started(with_aliases(sleeping("two", false), &["db", "one"])));
    world.api().started(sleeping("client", false));
    let question = on_bridge("udp", "A", "db");
    let orders = [format!("NOERROR {one} {two}"), format!("NOERROR {two} {one}")];
    let mut seen = [false; 2];
    wait::until("both orders of the addresses were returned", || {
        let answer = world.ask_one("client", &question);
        let at = orders.iter().position(|order| *order == answer);
        seen[at.unwrap_or_else(|| panic!("{answer}"))] = true;
        (seen == [true; 2]).then_some(())
    });
    assert_eq!(world.ask_one("client", &on_bridge("udp", "A", "one")), format!("NOERROR {one}"));
    world.api().stop("one", Some(0)).unwrap();
    assert_eq!(world.ask_one("client", &question), format!("NOERROR {two}"));
    world.delete_all();
}

/// A pod is found by its id, host name and aliases. Its members are found by their ids. All these names have the pod's
/// address.
#[test]
fn members_are_found_at_their_pod() {
    let world = World::start();
    let pods: Pods = world.api().client().pods();
    let asked = CreatePodRequest {
        id: "pod".into(),
        network: v1::Network::Cni.into(),
        network_name: "bridge".into(),
        hostname: "shop".into(),
        network_aliases: vec!["store".into()],
        ..CreatePodRequest::default()
    };
    let pod = world.api().block_on(pods.create(&asked)).unwrap().0;
    let member = RunRequest {
        pod: "pod".into(),
        network: v1::Network::default().into(),
        network_name: String::new(),
        ..sleeping("member", false)
    };
    world.api().started(member.clone());
    let refused = world.api().run(with_aliases(RunRequest { id: "other".into(), ..member }, &["a"])).unwrap_err();
    assert_eq!(super::field(&refused), "network_aliases");
    let addresses = pod.network_status.unwrap().addresses;
    let v4 = addresses[0].split('/').next().unwrap();
    world.api().started(sleeping("client", false));
    for (from, name) in
        [("client", "pod"), ("client", "shop"), ("client", "store"), ("client", "member"), ("member", "pod")]
    {
        let answer = world.ask_one(from, &on_bridge("udp", "A", name));
        assert_eq!(answer, format!("NOERROR {v4}"), "{name}");
    }
    let (client, _) = super::addresses(&world.api().get("client").unwrap());
    assert_eq!(world.ask_one("member", &on_bridge("udp", "A", "client")), format!("NOERROR {client}"));
    assert!(world.script("member", "cat /etc/resolv.conf").contains(BRIDGE_V4));
    world.api().stop("member", Some(0)).unwrap();
    assert_eq!(world.ask_one("client", &on_bridge("udp", "A", "member")), NXDOMAIN);
    world.api().delete("client", true).unwrap();
    world.api().block_on(pods.delete("pod", true)).unwrap();
    world.assert_nothing_left();
}

/// Queries are answered while the launcher restarts, and again after a restart of executord or of both.
#[test]
fn names_survive_restarts() {
    let mut world = World::start();
    let (web, _) = addresses(&world.api().started(with_aliases(sleeping("web", false), &["db"])));
    world.api().started(sleeping("client", false));
    let question = on_bridge("udp", "A", "db");
    let found = format!("NOERROR {web}");
    assert_eq!(world.ask_one("client", &question), found);
    let launcher = world.daemon.launcher().unwrap();
    integration::daemon::kill(launcher, 9);
    wait::until("the launcher has exited", || integration::daemon::has_ended(launcher).then_some(()));
    // Without a launcher no process can be executed in the container, so a process enters the container's network
    // namespace.
    let pid = world.daemon.record("client").prepared.unwrap().init.pid.to_string();
    let questions = ["nsenter", "-n", "-t", &pid, PYTHON, "-c", ASK, &question];
    assert_eq!(world.network.on_host(&questions).trim(), found);
    world.daemon.kill();
    assert_eq!(world.network.on_host(&questions).trim(), "NOTHING", "control: no process answers");
    world.daemon.start_again();
    wait::until("the name is resolved", || (world.ask_one("client", &question) == found).then_some(()));
    let (next, _) = addresses(&world.api().started(with_aliases(sleeping("next", false), &["later"])));
    assert_eq!(world.ask_one("client", &on_bridge("tcp", "A", "later")), format!("NOERROR {next}"));
    assert!(world.daemon.terminate().success());
    world.daemon.start_again();
    wait::until("the name is resolved", || (world.ask_one("client", &question) == found).then_some(()));
    world.delete_all();
}

/// If another program uses the name server's port, containers start without a name server, and a warning states the
/// reason.
#[test]
fn used_port_leaves_no_name_server() {
    let network = Network::forwarding();
    network.on_host(&["ip", "address", "add", "10.61.0.1/32", "dev", "lo"]);
    let other = network.enter(|| std::net::UdpSocket::bind("0.0.0.0:53").unwrap());
    let daemon = network.without_cni(POLICY, "").start();
    let world = World { daemon, network };
    world.network.on_host(&["ip", "address", "del", "10.61.0.1/32", "dev", "lo"]);
    let resolv = |id: &str| {
        world.api().started(sleeping(id, false));
        world.script(id, "cat /etc/resolv.conf")
    };
    assert_eq!(resolv("without"), "");
    let inspected = cli::run(&world.daemon.socket(), &["network", "inspect", "bridge"]).stdout;
    let warning = "containers have no name server: another program already listens on UDP 10.61.0.1:53";
    assert!(inspected.contains(warning), "{inspected}");
    assert!(world.daemon.setup().logged().contains(warning));
    // Without the executor's name server, the host's port is closed to containers like other host ports.
    assert_eq!(world.ask_one("without", &on_bridge("udp", "A", "without")), "NOTHING");
    drop(other);
    wait::until("executord retries the port", || {
        let inspected = cli::run(&world.daemon.socket(), &["network", "inspect", "bridge"]).stdout;
        (!inspected.contains(warning)).then_some(())
    });
    assert!(resolv("with").contains(BRIDGE_V4));
    world.delete_all();
}

/// Aliases need a built-in network.
#[test]
fn aliases_need_a_built_in_network() {
    let network = Network::new();
    network.configure("10-test.conflist", "test", &[]);
    let daemon = network.daemon("");
    let asked = RunRequest { network_name: "test".into(), ..with_aliases(sleeping("web", false), &["db"]) };
    let refused = daemon.api.run(asked).unwrap_err();
    super::assert_refused(&refused, "only built-in networks have aliases");
    assert_eq!(super::field(&refused), "network_aliases");
    let id = ["run", "--rootfs", "host", "--network", "none", "--network-alias", "db", "/bin/true"];
    let refused = cli::run(&daemon.socket(), &id);
    assert!(refused.stderr.contains("--network-alias"), "{refused:?}");
}
