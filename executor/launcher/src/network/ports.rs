//! Reserves published host ports. A port that a service on the host uses is refused; other ports are reserved for the
//! container.
//!
//! CNI's portmap plugin redirects packets before any socket sees them. Without a reservation, a container could take
//! over the port of a running service, and a service could start on a container's port and receive nothing. Therefore a
//! socket is bound to each port. The socket is never listened on or read, and is closed when the shim exits. Podman
//! reserves ports in the same way.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use executor_core::plan::{Protocol, PublishedPort};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with, sockopt};

use super::NetworkError;

/// Sockets that reserve a container's ports.
#[derive(Debug, Default)]
pub(crate) struct Reserved {
    _sockets: Vec<OwnedFd>,
}

impl Reserved {
    /// Reserves every port, on its address or on all addresses.
    ///
    /// # Errors
    /// Returns an error if a port is in use or its address is not assigned to the host.
    pub(super) fn from_ports(ports: &[PublishedPort]) -> Result<Self, NetworkError> {
        let mut sockets = Vec::new();
        for port in ports {
            let addresses = match port.host_ip {
                Some(ip) => vec![ip],
                None => vec![IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)],
            };
            for ip in addresses {
                match bind_exclusively(SocketAddr::new(ip, port.host_port), port.protocol) {
                    Ok(socket) => sockets.push(socket),
                    // The host does not support this family or protocol, so no process can use the port.
                    Err(Errno::AFNOSUPPORT | Errno::PROTONOSUPPORT | Errno::SOCKTNOSUPPORT) => {}
                    Err(Errno::ADDRNOTAVAIL) if port.host_ip.is_none() => {}
                    Err(error) => return Err(refused(port, error)),
                }
            }
        }
        Ok(Self { _sockets: sockets })
    }
}

fn refused(port: &PublishedPort, error: Errno) -> NetworkError {
    match error {
        Errno::ADDRINUSE => {
            NetworkError::HostPort(format!("host port {}", port.on_host()), "a host process uses this port")
        }
        Errno::ADDRNOTAVAIL => NetworkError::HostPort(port.on_host(), "the address is not assigned to this host"),
        error => NetworkError::System("cannot reserve a host port", error.into()),
    }
}

/// Returns a socket that is bound to the port exclusively.
fn bind_exclusively(address: SocketAddr, protocol: Protocol) -> Result<OwnedFd, Errno> {
    let (kind, protocol) = match protocol {
        Protocol::Tcp => (SocketType::STREAM, ipproto::TCP),
        Protocol::Udp => (SocketType::DGRAM, ipproto::UDP),
        Protocol::Sctp => (SocketType::STREAM, ipproto::SCTP),
    };
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, Some(protocol))?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    // Nothing reads the socket. With a minimal buffer, packets that the plugin does not redirect are dropped early.
    sockopt::set_socket_recv_buffer_size(&socket, 0)?;
    bind(&socket, &address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    fn port(host_ip: Option<&str>, host_port: u16, protocol: Protocol) -> PublishedPort {
        let host_ip = host_ip.map(|ip| ip.parse().unwrap());
        PublishedPort { host_ip, host_port, container_port: 80, protocol }
    }

    #[test]
    fn host_ports_are_refused_or_reserved() {
        let service = TcpListener::bind("127.0.0.1:0").unwrap();
        let number = service.local_addr().unwrap().port();
        for ip in [Some("127.0.0.1"), None] {
            let refused = Reserved::from_ports(&[port(ip, number, Protocol::Tcp)]).unwrap_err().to_string();
            assert!(refused.ends_with("/tcp: a host process uses this port"), "{refused}");
        }
        Reserved::from_ports(&[port(Some("127.0.0.2"), number, Protocol::Tcp)]).unwrap();
        Reserved::from_ports(&[port(None, number, Protocol::Udp)]).unwrap();
        drop(service);
        let reserved =
            Reserved::from_ports(&[port(None, number, Protocol::Tcp), port(None, number, Protocol::Udp)]).unwrap();
        for address in ["127.0.0.1", "[::1]", "[::]"] {
            assert!(TcpListener::bind(format!("{address}:{number}")).is_err(), "{address}");
            assert!(UdpSocket::bind(format!("{address}:{number}")).is_err(), "{address}");
        }
        drop(reserved);
        TcpListener::bind(("127.0.0.1", number)).unwrap();
    }

    #[test]
    fn an_address_of_another_host_is_refused() {
        let refused = Reserved::from_ports(&[port(Some("192.0.2.77"), 18_080, Protocol::Tcp)]).unwrap_err().to_string();
        assert_eq!(refused, "192.0.2.77:18080/tcp: the address is not assigned to this host");
    }
}
