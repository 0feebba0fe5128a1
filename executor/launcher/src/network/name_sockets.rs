//! Opens the sockets of executord's name server, on port 53 of a built-in network's gateways. Only root can open these
//! sockets. The sockets are opened before the bridge exists, and stay open after this process exits.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};

use executor_core::protocol::{OpenNameSockets, Reason, Refused};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket, sockopt,
};

use crate::errors::plain;
use crate::host::Host;

/// Port of name servers.
pub(super) const NAMES_PORT: u16 = 53;
/// Maximum number of TCP connections in the accept queue.
const BACKLOG: i32 = 128;

/// Opens the sockets of a network: for each gateway one UDP socket and one TCP socket.
///
/// # Errors
/// Returns a refusal if the network does not exist, or if another program uses a port.
pub(crate) fn open_name_sockets(host: &Host, request: &OpenNameSockets) -> Result<Vec<OwnedFd>, Refused> {
    let name = &request.network;
    let network = host.networks.get(name).ok_or_else(|| {
        let why = format!("the launcher's configuration has no built-in network `{name}`");
        Refused::new(Reason::NotFound, why)
    })?;
    let mut sockets = Vec::new();
    for gateway in network.gateways() {
        for kind in [SockType::Datagram, SockType::Stream] {
            sockets.push(open(gateway.ip, kind).map_err(|error| refused(gateway.ip, kind, &error))?);
        }
    }
    Ok(sockets)
}

fn refused(gateway: IpAddr, kind: SockType, error: &io::Error) -> Refused {
    let protocol = if kind == SockType::Stream { "TCP" } else { "UDP" };
    let port = SocketAddr::new(gateway, NAMES_PORT);
    if error.kind() == io::ErrorKind::AddrInUse {
        let why = format!(
            "another program already listens on {protocol} {port}; configure that program to listen on other addresses"
        );
        return Refused::new(Reason::Precondition, why);
    }
    Refused::new(Reason::Internal, format!("cannot open the {protocol} socket {port}: {}", plain(error)))
}

fn open(gateway: IpAddr, kind: SockType) -> io::Result<OwnedFd> {
    let family = if gateway.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
    // The address exists only while the bridge exists.
    setsockopt(&socket, sockopt::IpFreebind, &true)?;
    if gateway.is_ipv6() {
        setsockopt(&socket, sockopt::Ipv6V6Only, &true)?;
    }
    let is_stream = kind == SockType::Stream;
    if is_stream {
        // Connections of an earlier executord may still be in TIME_WAIT.
        setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    }
    bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(gateway, NAMES_PORT)))?;
    if is_stream {
        listen(&socket, Backlog::new(BACKLOG)?)?;
    }
    Ok(socket)
}
