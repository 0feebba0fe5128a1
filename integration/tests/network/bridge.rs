//! Built-in bridge networks on a host without CNI plugins: published ports, outgoing connections, isolation, host
//! errors, killed processes, and pods. Servers respond with their own name and with the client's address as they see
//! it.

mod faults;
mod isolation;
mod lifetimes;
mod names;
mod outgoing;
mod ports;
mod spoofing;

use std::net::IpAddr;
use std::process::Child;

use executor_proto::v1::port_mapping::Protocol;
use executor_proto::v1::{Capabilities, Container, PortMapping, RunRequest};
use integration::api::Api;
use integration::daemon::Daemon;
use integration::network::Network;
use integration::request::{RequestBuilder, program};
use integration::streams::{executed, start};
use integration::wait;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use super::on_cni;

const PYTHON: &str = "/usr/bin/python3";
const SERVER: &str = include_str!("bridge/server.py");
const CLIENT: &str = include_str!("bridge/client.py");
/// Port of the server in a container.
const INSIDE: u16 = 8080;
/// Port of the server in the outside world.
const OUTSIDE: u16 = 9001;
/// Gateway addresses of the network `bridge`, which belong to the host.
const BRIDGE_V4: &str = "10.61.0.1";
const BRIDGE_V6: &str = "fd65:7865:6375:61::1";
const POLICY: &str = "allow_egress = true\ncapabilities_allowed = [\"CAP_NET_ADMIN\", \"CAP_NET_RAW\"]\n";
/// A second built-in network.
const BLUE: &str = "[networks.blue]\nipv4 = \"10.62.0.0/16\"\nipv6 = \"fd62::/64\"\n";
/// Configuration section of the default network. It is needed if a configuration has other networks.
const BRIDGE: &str = "[networks.bridge]\nipv4 = \"10.61.0.0/16\"\nipv6 = \"fd65:7865:6375:61::/64\"\n";

/// A simulated host with a daemon. The daemon is dropped first.
struct World {
    daemon: Daemon,
    network: Network,
}

/// Location from which connections are opened.
#[derive(Clone, Copy, Debug)]
enum Place<'a> {
    Host,
    Beyond,
    Container(&'a str),
}

/// Protocol, address and port of a server, and the start of the response if the server must be reached.
type Target<'a> = (&'a str, &'a str, u16, Option<&'a str>);

impl World {
    /// Starts a daemon with the default configuration of networks.
    fn start() -> Self {
        Self::configured("")
    }

    /// Starts a daemon with these configuration sections of networks.
    fn configured(networks: &str) -> Self {
        let network = Network::forwarding();
        let daemon = network.without_cni(POLICY, networks).start();
        Self { daemon, network }
    }

    /// Restarts executord and the launcher with these configuration sections of networks.
    fn restart_on(&mut self, networks: &str) {
        self.daemon.terminate();
        self.daemon.launcher().into_iter().for_each(|pid| integration::daemon::kill(pid, 9));
        self.daemon.setup().replace_config(&self.network.config_without_cni(POLICY, networks));
        self.daemon.start_again();
    }

    fn api(&self) -> &Api {
        &self.daemon.api
    }

    /// Starts a container with a server and waits until it serves.
    fn serve(&self, request: RunRequest) -> Container {
        self.api().up(request)
    }

    /// Connects to the targets and returns their responses.
    fn connect(&self, from: Place<'_>, targets: &[Target<'_>]) -> Vec<Option<String>> {
        let named: Vec<String> =
            targets.iter().map(|(protocol, ip, port, _)| format!("{protocol},{ip},{port}")).collect();
        let mut arguments = vec!["-c", CLIENT];
        arguments.extend(named.iter().map(String::as_str));
        let on_host = [&[PYTHON], &arguments[..]].concat();
        let reported = match from {
            Place::Host => self.network.on_host(&on_host),
            Place::Beyond => self.network.on_beyond(&on_host),
            Place::Container(id) => executed(self.api(), start(id, PYTHON, &arguments)).unwrap().text(),
        };
        let answer = |number: usize| {
            let answer = reported.lines().find_map(|line| line.strip_prefix(&format!("{number}=")));
            answer.map(str::to_owned)
        };
        (0..targets.len()).map(answer).collect()
    }

    /// Connects until each target with an expected response has responded; a busy machine may respond late. The other
    /// targets must never respond.
    fn assert_reached(&self, from: Place<'_>, targets: &[Target<'_>]) {
        let mut reached: Vec<Option<String>> = vec![None; targets.len()];
        wait::until_ok(&format!("{from:?} reaches {targets:?}"), || {
            for (at, answer) in self.connect(from, targets).into_iter().enumerate() {
                let Some(answer) = answer else { continue };
                let expected = targets[at].3.is_some_and(|expected| answer.starts_with(expected));
                assert!(expected, "{from:?} reaches {:?}: {answer}", targets[at]);
                reached[at] = Some(answer);
            }
            let all = reached.iter().zip(targets).all(|(reached, target)| reached.is_some() == target.3.is_some());
            if all { Ok(()) } else { Err(format!("{reached:?}")) }
        });
    }

    /// Starts a server in the outside world.
    fn serve_beyond(&self) -> HostServer {
        let port = OUTSIDE.to_string();
        HostServer(self.network.start_on_beyond(&[PYTHON, "-c", SERVER, "outside", &port]))
    }

    /// Starts a server on the host.
    fn serve_on_host(&self, port: u16) -> HostServer {
        HostServer(self.network.start_on_host(&[PYTHON, "-c", SERVER, "host", &port.to_string()]))
    }

    /// Checks that no network object of a container is left.
    fn assert_nothing_left(&self) {
        wait::until_ok("no network object is left", || match self.network.bridge_leftovers(self.daemon.setup()) {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{left:#?}")),
        });
    }

    /// Deletes containers and checks that nothing is left of them.
    fn delete_all(&self) {
        for id in self.api().ids() {
            self.api().delete(&id, true).unwrap();
        }
        self.assert_nothing_left();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let state = "ip -d link; ip neigh; ip -6 route; nft list ruleset; cat /proc/net/nf_conntrack";
            eprintln!("--- the host's network:\n{}", self.network.on_host(&["sh", "-c", state]));
        }
    }
}

/// A server outside of containers, which is killed on drop.
struct HostServer(Child);

impl Drop for HostServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sets the built-in network of a container.
fn on(name: &str, request: RunRequest) -> RunRequest {
    on_cni(RunRequest { network_name: name.into(), ..request })
}

/// Builds a request for a server on the network `bridge`, without egress.
fn server(id: &str, ports: &[PortMapping]) -> RunRequest {
    let request = program(PYTHON, &["-c", SERVER, id, &INSIDE.to_string()]).id(id).grace_ms(0);
    on("bridge", RunRequest { ports: ports.to_vec(), ..request })
}

/// Builds a request for a container on the network `bridge` that runs until it is stopped.
fn sleeping(id: &str, egress: bool) -> RunRequest {
    on("bridge", RunRequest { egress, ..program("/bin/sleep", &["100000"]).id(id).grace_ms(0) })
}

/// Adds the capabilities to send any frame, and egress, which these capabilities require.
fn raw(request: RunRequest) -> RunRequest {
    let add = vec!["NET_ADMIN".into(), "NET_RAW".into()];
    RunRequest { capabilities: Some(Capabilities { add, ..Capabilities::default() }), egress: true, ..request }
}

/// Returns the port mapping of the server's TCP port.
fn tcp(host_ip: &str, host_port: u16) -> PortMapping {
    published(host_ip, host_port, Protocol::Tcp)
}

fn published(host_ip: &str, host_port: u16, protocol: Protocol) -> PortMapping {
    PortMapping {
        host_ip: host_ip.into(),
        host_port: host_port.into(),
        container_port: INSIDE.into(),
        protocol: protocol.into(),
    }
}

/// Returns the container's IPv4 and IPv6 address.
fn addresses(container: &Container) -> (String, String) {
    let status = container.network_status.clone().unwrap();
    let ips: Vec<&str> = status.addresses.iter().map(|address| address.split('/').next().unwrap()).collect();
    let family = |v4: bool| ips.iter().find(|ip| ip.parse::<IpAddr>().unwrap().is_ipv4() == v4).unwrap();
    ((*family(true)).to_owned(), (*family(false)).to_owned())
}

/// Checks that a request is refused because of the host's state, with these words in the message.
fn assert_refused(refused: &Status, words: &str) {
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    assert!(refused.message().contains(words), "{refused:?}");
}

/// Returns the field of the first violation of a refused request.
fn field(refused: &Status) -> String {
    refused.get_details_bad_request().unwrap().field_violations.remove(0).field
}
