//! Creates sockets in another process's network namespace.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::process::enter_namespaces;

/// Creates a TCP socket in the network namespace of the pidfd's process. The calling process must be single-threaded,
/// because it enters the namespace for this one system call. If the process cannot return to its own namespace, the
/// process aborts, so that no other code runs in the entered namespace.
///
/// # Errors
/// Returns an error if the process has exited, the caller lacks privilege, the namespace does not support the address
/// family, or descriptors run out.
pub fn tcp_socket_of(pidfd: BorrowedFd<'_>, ipv6: bool) -> io::Result<OwnedFd> {
    let own = File::open("/proc/self/ns/net")?;
    enter_namespaces(pidfd, false, true)?;
    let family = if ipv6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None);
    if enter_namespaces(own.as_fd(), false, true).is_err() {
        std::process::abort();
    }
    Ok(socket?)
}
