//! Host programs use ports. A request for a used port is refused, and the host program stays reachable.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use executor_proto::v1::{PortMapping, RunRequest, port_mapping::Protocol};
use integration::network::{HOST, Network};
use integration::rootfs::Rootfs;
use integration::wait;
use tonic::Code;
use tonic_types::StatusExt as _;

use super::{on_cni, server, sleeping};

/// A server of a host program.
enum Service {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl Service {
    fn start(address: &str, protocol: Protocol) -> Self {
        match protocol {
            Protocol::Udp => Self::Udp(UdpSocket::bind(address).unwrap()),
            _ => Self::Tcp(TcpListener::bind(address).unwrap()),
        }
    }

    /// Checks that a connection to this address reaches this server.
    fn is_reached(&self, address: SocketAddr) {
        let timeout = Some(Duration::from_secs(10));
        match self {
            Self::Tcp(listener) => {
                let mut client = TcpStream::connect_timeout(&address, Duration::from_secs(10)).unwrap();
                client.set_read_timeout(timeout).unwrap();
                client.write_all(b"x").unwrap();
                // There is only one client, so a connection that arrives is the client's.
                listener.set_nonblocking(true).unwrap();
                let (mut accepted, _) = wait::until_ok("the program has the connection", || listener.accept());
                accepted.write_all(b"from-host").unwrap();
                drop(accepted);
                let mut reported = String::new();
                // The connection may end with a reset, because the server does not read the client's data.
                let _ = client.read_to_string(&mut reported);
                assert_eq!(reported, "from-host", "{address}");
            }
            Self::Udp(socket) => {
                socket.set_read_timeout(timeout).unwrap();
                let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                UdpSocket::bind(any).unwrap().send_to(b"to-host", address).unwrap();
                let mut buffer = [0; 16];
                let length = socket.recv(&mut buffer).unwrap();
                assert_eq!(&buffer[..length], b"to-host", "{address}");
            }
        }
    }
}

fn port(ip: &str, host_port: u32, protocol: Protocol) -> PortMapping {
    PortMapping { host_ip: ip.into(), host_port, container_port: 8080, protocol: protocol.into() }
}

#[test]
fn port_of_host_process_is_refused() {
    let (network, rootfs) = (Network::new(), Rootfs::busybox());
    network.configure("10-test.conflist", "test", &[]);
    let daemon = network.daemon("ports_allowed = [\"1-65535\"]");
    // The first container creates the network's bridge.
    daemon.api.started(sleeping("first", &rootfs));
    daemon.api.delete("first", true).unwrap();
    let before = daemon.footprint();
    let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
    // Address and port of a host server, and addresses at which a container requests the same port. An empty string
    // means all addresses.
    let table: [(&str, u16, Protocol, &[&str]); 7] = [
        ("0.0.0.0", 18_080, tcp, &["", "127.0.0.1", HOST, "0.0.0.0"]),
        ("127.0.0.1", 18_081, tcp, &["", "127.0.0.1", "0.0.0.0"]),
        ("::", 18_082, tcp, &["", "::1", "127.0.0.1", HOST]),
        ("::1", 18_083, tcp, &["", "::1"]),
        (HOST, 18_084, udp, &["", HOST, "0.0.0.0"]),
        ("0.0.0.0", 18_085, udp, &["", "127.0.0.1"]),
        ("0.0.0.0", 80, tcp, &["", HOST]),
    ];
    for (listens, number, protocol, asked) in table {
        let ip: IpAddr = listens.parse().unwrap();
        let bound = SocketAddr::new(ip, number).to_string();
        let service = network.enter(|| Service::start(&bound, protocol));
        let local = match ip {
            _ if !ip.is_unspecified() => ip,
            IpAddr::V4(_) => "127.0.0.1".parse().unwrap(),
            IpAddr::V6(_) => "::1".parse().unwrap(),
        };
        for at in asked {
            let taken = port(at, number.into(), protocol);
            // A free port is requested together with the used port: no port is published.
            let ports = vec![port("", 19_000, tcp), taken];
            let refused = daemon.api.run(RunRequest { ports, ..server("web", &rootfs) }).unwrap_err();
            let what = format!("{bound} requested at {at:?}: {refused:?}");
            assert_eq!(refused.code(), Code::FailedPrecondition, "{what}");
            assert!(refused.message().contains("a host process uses this port"), "{what}");
            let field = refused.get_details_bad_request().unwrap().field_violations.remove(0);
            assert!(field.field.starts_with("ports") && field.description.contains(&number.to_string()), "{what}");
            network.enter(|| {
                service.is_reached(SocketAddr::new(local, number));
                TcpListener::bind("0.0.0.0:19000").unwrap();
            });
        }
        if !ip.is_loopback() && ip.is_ipv4() {
            network.enter_beyond(|| service.is_reached(SocketAddr::new(HOST.parse().unwrap(), number)));
        }
    }
    assert_eq!(network.leftovers(daemon.setup()), Vec::<String>::new());
    daemon.wait_until_back_at(&before);

    // As a control, the container gets its port and responds there after the program has stopped, and no host program
    // can bind that port.
    let ports = vec![port("", 18_080, tcp)];
    daemon.api.started(on_cni(RunRequest { ports, ..server("web", &rootfs) }));
    let reported = || network.on_host(&["busybox", "nc", "-w", "2", HOST, "18080"]);
    wait::until("the container responds", || reported().contains("from-web").then_some(()));
    for address in ["0.0.0.0:18080", "127.0.0.1:18080", "[::]:18080"] {
        assert!(network.enter(|| TcpListener::bind(address)).is_err(), "{address}");
    }
    // With the other protocol or at another address, a host program can bind the same port.
    network.enter(|| UdpSocket::bind("0.0.0.0:18080")).unwrap();
}
