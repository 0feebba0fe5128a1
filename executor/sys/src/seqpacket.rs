//! Provides unix sockets (SOCK_SEQPACKET) that keep message boundaries and carry descriptors.
//!
//! Received descriptors are close-on-exec. A truncated message, in bytes or in descriptors, is an error and never a
//! partial message. If the peer has closed, sending returns EPIPE and never causes a signal.
//!
//! Whether a call blocks depends on a flag in the call, so one end cannot make calls of the other end block. O_NONBLOCK
//! is not used, because it belongs to the open file description. A peer that passed the socket shares this description.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nix::sys::socket::sockopt::PeerCredentials;
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recvmsg, sendmsg, shutdown, socket_with, socketpair,
};

use crate::process;
use crate::ready::readable_by;

/// Maximum number of descriptors in one message.
pub const FDS_MAX: usize = 9;
/// Maximum length of a unix socket's path in bytes, without the NUL.
pub const PATH_MAX: usize = 107;

/// One end of a connection.
#[derive(Debug)]
pub struct Seqpacket {
    fd: OwnedFd,
    waits: AtomicBool,
}

#[derive(Debug)]
pub struct SeqpacketListener(OwnedFd);

impl Seqpacket {
    /// Creates a pair of connected sockets.
    ///
    /// # Errors
    /// Returns an error if descriptors run out.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self::made(a), Self::made(b)))
    }

    /// Connects to the listener at `path` without blocking.
    ///
    /// # Errors
    /// Returns `ConnectionRefused` or `NotFound` if there is no listener, `WouldBlock` if its queue is full, and
    /// another error if the user lacks permission.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        with_address(path, |address| connect(&socket, address))?;
        rustix::io::ioctl_fionbio(&socket, false)?;
        Ok(Self::made(socket))
    }

    /// Connects as [`Self::connect`] does, but only if the listening process is alive. A child of an exited listener
    /// may still have the socket open: then the kernel accepts connections, but no process responds.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::connect`], and `ConnectionRefused` if the listening process has exited.
    pub fn connect_to_living(path: &Path) -> io::Result<Self> {
        let connection = Self::connect(path)?;
        let pid = connection.peer_pid()?;
        if pid > 0 && !process::is_alive(pid)? {
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "the listening process has exited"));
        }
        Ok(connection)
    }

    /// Returns the pid of the process that created the listener or the pair. Returns 0 for a process of another pid
    /// namespace.
    ///
    /// # Errors
    /// Returns the kernel's error if the call fails.
    pub fn peer_pid(&self) -> io::Result<i32> {
        Ok(nix::sys::socket::getsockopt(&self.fd, PeerCredentials)?.pid())
    }

    /// Wraps a socket that a peer passed. Its calls never block.
    ///
    /// # Errors
    /// Returns an error if the descriptor is not a SOCK_SEQPACKET unix socket.
    pub fn from_peer(fd: OwnedFd) -> io::Result<Self> {
        let is_one = socket_domain(&fd).is_ok_and(|domain| domain == AddressFamily::UNIX)
            && socket_type(&fd).is_ok_and(|kind| kind == SocketType::SEQPACKET);
        if !is_one {
            let why = "the passed descriptor is not a unix socket of the type SOCK_SEQPACKET";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(Self { fd, waits: AtomicBool::new(false) })
    }

    /// Wraps a socket that this process created.
    fn made(fd: OwnedFd) -> Self {
        Self { fd, waits: AtomicBool::new(true) }
    }

    fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    /// Sends one message.
    ///
    /// # Errors
    /// Returns an error if the peer has closed, there are more than [`FDS_MAX`] descriptors, the message is too large
    /// for a packet, or the call would block.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the message has {} descriptors; the maximum is {FDS_MAX}", fds.len()),
            ));
        }
        let wait = if self.waits() { SendFlags::empty() } else { SendFlags::DONTWAIT };
        let flags = SendFlags::NOSIGNAL | wait;
        loop {
            match sendmsg(&self.fd, &[IoSlice::new(bytes)], &mut control, flags) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// Receives one message. Returns its length in `buffer` and its descriptors, or `None` if the peer has closed.
    ///
    /// # Errors
    /// Returns an error if the message is longer than `buffer` or has more than [`FDS_MAX`] descriptors, or if the call
    /// would block. Returns EMFILE if this process has too few free descriptors; the message is then lost.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
        match self.recv_or_report(buffer)? {
            None => Ok(None),
            Some((length, fds)) => Ok(Some((length, fds?))),
        }
    }

    /// Receives one message as [`Self::recv`] does, for a receiver that must reply. If this process has too few free
    /// descriptors, returns the message with the error in place of its descriptors.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::recv`].
    pub fn recv_or_report(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, io::Result<Vec<OwnedFd>>)>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let wait = if self.waits() { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let received = loop {
            match recvmsg(&self.fd, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC | wait) {
                Err(rustix::io::Errno::INTR) => {}
                // The peer closed its end with unread data. The kernel reports this once, before data that the peer
                // sent.
                Err(rustix::io::Errno::CONNRESET) => {}
                Err(error) => return Err(error.into()),
                Ok(received) => break received,
            }
        };
        let fds: Vec<OwnedFd> = control
            .drain()
            .filter_map(|message| if let RecvAncillaryMessage::ScmRights(fds) = message { Some(fds) } else { None })
            .flatten()
            .collect();
        let no_room = received.flags.contains(ReturnFlags::CTRUNC) && fds.len() < FDS_MAX;
        if received.flags.contains(ReturnFlags::TRUNC) || received.flags.contains(ReturnFlags::CTRUNC) && !no_room {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message was truncated"));
        }
        if no_room {
            return Ok(Some((received.bytes, Err(rustix::io::Errno::MFILE.into()))));
        }
        if received.bytes == 0 && fds.is_empty() { Ok(None) } else { Ok(Some((received.bytes, Ok(fds)))) }
    }

    /// Receives one message before the deadline.
    ///
    /// # Errors
    /// Returns the same errors as [`Seqpacket::recv`], and `TimedOut` if the deadline passes.
    pub fn recv_by(&self, buffer: &mut [u8], deadline: Instant) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
        loop {
            if !readable_by(&self.fd, deadline)? {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match self.recv(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return received,
            }
        }
    }

    /// Sets whether calls fail with `WouldBlock` instead of blocking.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.waits.store(!nonblocking, Ordering::Relaxed);
    }
}

impl SeqpacketListener {
    /// Listens at `path`, which must not exist.
    ///
    /// # Errors
    /// Returns `AddrInUse` if the path exists, and another error if the path is too long.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        with_address(path, |address| bind(&socket, address))?;
        listen(&socket, 128)?;
        Ok(Self(socket))
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// Returns an error if the call would block or descriptors run out.
    pub fn accept(&self) -> io::Result<Seqpacket> {
        Ok(Seqpacket::made(accept_with(&self.0, SocketFlags::CLOEXEC)?))
    }

    /// Refuses new connections. Pending connections can still be accepted.
    ///
    /// # Errors
    /// Returns the kernel's error if a system call fails, which is not expected: shutdown does not fail for a listening
    /// socket.
    pub fn refuse(&self) -> io::Result<()> {
        Ok(shutdown(&self.0, Shutdown::Both)?)
    }

    /// Sets whether calls fail with `WouldBlock` instead of blocking.
    ///
    /// # Errors
    /// Returns the kernel's error if a system call fails, which is not expected.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.0, nonblocking)?)
    }
}

/// Calls `act` with the address of a path. An address has room for 107 bytes, so a longer path is addressed through a
/// descriptor of its directory.
fn with_address(path: &Path, act: impl FnOnce(&SocketAddrUnix) -> rustix::io::Result<()>) -> io::Result<()> {
    if path.as_os_str().len() <= PATH_MAX {
        return Ok(act(&SocketAddrUnix::new(path)?)?);
    }
    let invalid =
        || io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not a valid socket path", path.display()));
    let (parent, name) = path.parent().zip(path.file_name()).ok_or_else(invalid)?;
    let parent = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(parent)?;
    let short = Path::new("/proc/self/fd").join(std::os::fd::AsRawFd::as_raw_fd(&parent).to_string()).join(name);
    Ok(act(&SocketAddrUnix::new(&short)?)?)
}

impl AsFd for Seqpacket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsFd for SeqpacketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl std::os::fd::AsRawFd for Seqpacket {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.fd.as_raw_fd()
    }
}

impl From<Seqpacket> for OwnedFd {
    fn from(socket: Seqpacket) -> Self {
        socket.fd
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn messages_keep_their_bounds_and_bring_descriptors() {
        let (a, b) = Seqpacket::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"through").unwrap();
        a.send(b"one", &[file.as_fd()]).unwrap();
        a.send(b"two", &[]).unwrap();
        let mut buffer = [0; 64];
        let (length, fds) = b.recv(&mut buffer).unwrap().unwrap();
        assert_eq!((&buffer[..length], fds.len()), (&b"one"[..], 1));
        assert!(rustix::io::fcntl_getfd(&fds[0]).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        let mut back = String::new();
        let mut other = std::fs::File::from(fds.into_iter().next().unwrap());
        other.rewind().unwrap();
        other.read_to_string(&mut back).unwrap();
        assert_eq!(back, "through");
        assert_eq!(b.recv(&mut buffer).unwrap().unwrap().0, 3);
        drop(a);
        assert!(b.recv(&mut buffer).unwrap().is_none());
        assert_eq!(b.send(b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    /// If a listener has exited but a child still has its socket open, connections are refused.
    #[test]
    fn a_listener_that_has_ended_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let script = "use Socket; socket(S, AF_UNIX, 5, 0) && bind(S, sockaddr_un($ARGV[0])) && listen(S, 5) or die; $| = 1; \
                      if (!fork) { <STDIN>; exit } print \"listens\\n\"; sleep 100000";
        let mut listens = Command::new("/usr/bin/perl")
            .args(["-e", script])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        listens.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap();
        assert!(Seqpacket::connect_to_living(&path).is_ok());
        let held = listens.stdin.take();
        listens.kill().unwrap();
        listens.wait().unwrap();
        assert!(Seqpacket::connect(&path).is_ok(), "the control");
        let refused = Seqpacket::connect_to_living(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "{refused}");
        drop(held);
    }

    /// If a peer closes without reading its input, its last messages are still received.
    #[test]
    fn last_messages_of_closed_peer_arrive() {
        let (a, b) = Seqpacket::pair().unwrap();
        b.send(b"unread", &[]).unwrap();
        a.send(b"last words", &[]).unwrap();
        drop(a);
        let mut buffer = [0; 64];
        assert_eq!(b.recv(&mut buffer).unwrap().unwrap().0, 10);
        assert!(b.recv(&mut buffer).unwrap().is_none());
    }

    /// If a peer has a duplicate of the socket that it passed, it cannot make calls on this end block.
    #[test]
    fn peer_cannot_make_calls_block() {
        let (_a, b) = Seqpacket::pair().unwrap();
        let theirs = b.as_fd().try_clone_to_owned().unwrap();
        let passed = Seqpacket::from_peer(b.into()).unwrap();
        rustix::io::ioctl_fionbio(&theirs, false).unwrap();
        assert_eq!(passed.recv(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let full = loop {
            if let Err(error) = passed.send(&[0; 4096], &[]) {
                break error;
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    }

    /// After a listener is closed, pending connections can be accepted, and new connections are refused immediately.
    #[test]
    fn pending_connection_is_accepted_after_close() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = SeqpacketListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let early = Seqpacket::connect(&path).unwrap();
        listener.refuse().unwrap();
        assert_eq!(Seqpacket::connect(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        early.send(b"hello", &[]).unwrap();
        assert_eq!(listener.accept().unwrap().recv(&mut [0; 8]).unwrap().unwrap().0, 5);
        assert!(listener.accept().is_err());
    }

    #[test]
    fn other_socket_kinds_are_refused() {
        let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let (pipe, _end) = rustix::pipe::pipe().unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        for fd in [stream.into(), pipe, tcp.into(), OwnedFd::from(tempfile::tempfile().unwrap())] {
            assert_eq!(Seqpacket::from_peer(fd).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn oversized_message_is_error() {
        let (a, b) = Seqpacket::pair().unwrap();
        a.send(&[7; 65], &[]).unwrap();
        assert_eq!(b.recv(&mut [0; 64]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn long_socket_path_works_missing_listener_fails() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("d".repeat(100));
        std::fs::create_dir(&long).unwrap();
        let path = long.join("socket");
        assert_eq!(Seqpacket::connect(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        let listener = SeqpacketListener::bind(&path).unwrap();
        let client = Seqpacket::connect(&path).unwrap();
        listener.accept().unwrap().send(b"hello", &[]).unwrap();
        assert_eq!(client.recv(&mut [0; 8]).unwrap().unwrap().0, 5);
        drop(listener);
        assert_eq!(Seqpacket::connect(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
