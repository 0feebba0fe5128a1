//! Registration of descriptors with the runtime.

use std::io;
use std::os::fd::AsRawFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with the runtime, for reading and writing. The owner must keep its descriptor unchanged until
/// it is dropped.
///
/// # Errors
/// Returns an error if the runtime cannot register it.
pub fn watched<T: AsRawFd>(owner: T) -> io::Result<AsyncFd<T>> {
    watched_for(owner, Interest::READABLE | Interest::WRITABLE)
}

/// Registers a descriptor with the runtime for one interest. The owner has the same obligation as in [`watched`].
///
/// # Errors
/// Returns an error if the runtime cannot register it.
pub fn watched_for<T: AsRawFd>(owner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // Deprecated in favour of an unsafe variant, because a safe type could close or replace its descriptor while it is
    // registered. The types that are registered by executord (Seqpacket, UnixStream, TcpStream, OwnedFd, Inotify, and the
    // one of StdioFd) cannot.
    #[allow(deprecated)]
    AsyncFd::with_interest(owner, interest)
}
