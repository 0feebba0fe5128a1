//! Registers descriptors with the async runtime.

use std::io;
use std::os::fd::AsRawFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with the runtime, for reading and writing. `owner` must not close or replace its descriptor
/// before `owner` is dropped.
///
/// # Errors
/// Returns an error if the runtime cannot register the descriptor.
pub fn watched<T: AsRawFd>(owner: T) -> io::Result<AsyncFd<T>> {
    watched_for(owner, Interest::READABLE | Interest::WRITABLE)
}

/// Registers a descriptor with the runtime for one interest. The requirement of [`watched`] on `owner` applies.
///
/// # Errors
/// Returns an error if the runtime cannot register the descriptor.
pub fn watched_for<T: AsRawFd>(owner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // `with_interest` is deprecated in favour of an unsafe variant, because a safe type could close or replace its
    // descriptor while it is registered. The types that executord registers cannot do this: Seqpacket, UnixStream,
    // TcpStream, OwnedFd, Inotify, and the type in StdioFd.
    #[allow(deprecated)]
    AsyncFd::with_interest(owner, interest)
}
