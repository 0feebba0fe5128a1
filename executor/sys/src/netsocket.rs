//! Sockets in another process's network namespace.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::process::enter_namespaces;

/// Makes a TCP socket in the network namespace of the process of a pidfd. The calling process must have one thread: it
/// enters that namespace for the one system call, and aborts if it cannot come back, so that nothing else of it ever
/// happens there.
///
/// # Errors
/// The process has ended; no privilege; the namespace has no such addresses; no descriptor is left.
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
