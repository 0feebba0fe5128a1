//! Sends netlink requests, reads acknowledgements and dumps, and encodes netfilter messages.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use executor_sys::ready::readable_by;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::sockopt::{set_socket_recv_buffer_size_force, set_socket_send_buffer_size_force};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

/// Time limit for a response of the kernel.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Size of a socket's send buffer beyond the size of the message, in bytes.
const SEND_ROOM: usize = 64 << 10;
/// Maximum size of one part of a response, in bytes.
const PART_MAX: usize = 64 << 10;
/// Maximum size of a message that fits the default send buffer, in bytes.
const SEND_DEFAULT: usize = 16 << 10;
/// Maximum number of attempts to read a dump. A read fails if the data change during the read.
const DUMPS_MAX: u32 = 8;
/// Size of the receive buffer for a dump, in bytes.
const DUMP_ROOM: usize = 4 << 20;
const HEADER: usize = 16;

/// Flags in the header of a netlink message.
const REQUEST: u16 = 0x1;
pub(super) const ACKNOWLEDGE: u16 = 0x4;
pub(super) const DUMP: u16 = 0x300;
const INTERRUPTED: u16 = 0x10;
/// Types of netlink control messages.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Flag in the type of an attribute that contains attributes.
const NESTED: u16 = 0x8000;

/// Numbers of netfilter's subsystems in message types.
pub(super) const NETFILTER_SUBSYSTEM_CONNTRACK: u16 = 1;
pub(super) const NETFILTER_SUBSYSTEM_NFTABLES: u16 = 10;

thread_local! {
    /// Socket of [`with_host_netfilter`], and the pid of the process that created it.
    static HOST_NETFILTER: RefCell<Option<(u32, NetlinkSocket)>> = const { RefCell::new(None) };
}

/// Calls `act` with an nf_tables socket in the network namespace of this process. The socket stays open until the
/// process exits, because closing a socket waits for up to 25 ms until the kernel has freed deleted objects.
///
/// # Errors
/// Returns the error of `act`, or an error if the kernel has no netfilter.
pub(super) fn with_host_netfilter<T>(act: impl FnOnce(&NetlinkSocket) -> io::Result<T>) -> io::Result<T> {
    HOST_NETFILTER.with_borrow_mut(|held| {
        let own = std::process::id(); // a child must not read the responses for its parent
        let (_, socket) = match held.take() {
            Some((pid, socket)) if pid == own => held.insert((pid, socket)),
            _ => held.insert((own, NetlinkSocket::netfilter()?)),
        };
        let acted = act(socket);
        if acted.is_err() {
            *held = None; // further errors may be unread
        }
        acted
    })
}

/// Sends a request through a new socket and returns the bodies of all parts of the response. Repeats the request if the
/// data changed during the read.
///
/// # Errors
/// Returns the kernel's error, or `Interrupted` if the data changed during each read.
pub(super) fn dump(open: fn() -> io::Result<NetlinkSocket>, request: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let mut attempts = 1;
    loop {
        match open()?.dump(request) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted && attempts < DUMPS_MAX => attempts += 1,
            bodies => return bodies,
        }
    }
}

/// A netlink socket. The socket belongs to the network namespace in which it was created.
#[derive(Debug)]
pub(super) struct NetlinkSocket(OwnedFd);

impl NetlinkSocket {
    /// Creates a socket for links, addresses and routes.
    ///
    /// # Errors
    /// Returns an error if no descriptor is free.
    pub(super) fn route() -> io::Result<Self> {
        Self::make(None) // NETLINK_ROUTE is 0
    }

    /// Creates a socket for nf_tables and connection tracking.
    ///
    /// # Errors
    /// Returns an error if the kernel has no netfilter, or no descriptor is free.
    pub(super) fn netfilter() -> io::Result<Self> {
        Self::make(Some(NETFILTER))
    }

    fn make(protocol: Option<Protocol>) -> io::Result<Self> {
        Ok(Self(socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?))
    }

    /// Sends a message or a batch of messages in one call.
    ///
    /// # Errors
    /// Returns the kernel's error if the kernel refuses the request.
    pub(super) fn send(&self, message: &[u8]) -> io::Result<()> {
        if message.len() > SEND_DEFAULT {
            set_socket_send_buffer_size_force(&self.0, message.len() + SEND_ROOM)?;
        }
        sendto(&self.0, message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }

    /// Waits for this many acknowledgements.
    ///
    /// # Errors
    /// Returns the first error if the kernel reports one.
    pub(super) fn acknowledged(&self, count: usize) -> io::Result<()> {
        let mut seen = 0;
        let mut first = None;
        while seen < count {
            for answer in split(&self.receive()?)? {
                if answer.kind == ERROR {
                    seen += 1;
                    match error_of(answer.body)? {
                        0 => {}
                        errno => {
                            first.get_or_insert(errno);
                        }
                    }
                }
            }
            // In an nf_tables batch only the last message is acknowledged, and nothing follows an error.
            if let Some(errno) = first.filter(|_| count == 1 || seen >= count) {
                return Err(io::Error::from_raw_os_error(errno));
            }
        }
        Ok(())
    }

    /// Sends a request and returns the body of the single response.
    ///
    /// # Errors
    /// Returns the kernel's error if the kernel refuses the request.
    pub(super) fn get(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        self.send(request)?;
        let received = self.receive()?;
        let answers = split(&received)?;
        let answer = answers.first().ok_or(io::ErrorKind::InvalidData)?;
        match answer.kind {
            ERROR => Err(io::Error::from_raw_os_error(error_of(answer.body)?)),
            _ => Ok(answer.body.to_vec()),
        }
    }

    /// Sends a request and returns the bodies of all parts of the response.
    ///
    /// # Errors
    /// Returns the kernel's error, or `Interrupted` if the data changed during the read.
    fn dump(&self, request: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        // If the dump does not fit the buffer, parts of it are lost.
        set_socket_recv_buffer_size_force(&self.0, DUMP_ROOM)?;
        self.send(request)?;
        let mut bodies = Vec::new();
        // The kernel makes no part larger than the largest buffer of earlier receive calls on this socket.
        let mut buffer = vec![0; PART_MAX];
        loop {
            let length = self.receive_into(&mut buffer)?;
            for answer in split(&buffer[..length])? {
                if answer.flags & INTERRUPTED != 0 {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                match answer.kind {
                    DONE => return Ok(bodies),
                    ERROR => match error_of(answer.body)? {
                        0 => return Ok(bodies),
                        errno => return Err(io::Error::from_raw_os_error(errno)),
                    },
                    _ => bodies.push(answer.body.to_vec()),
                }
            }
        }
    }

    /// Receives a response that is not a dump.
    fn receive(&self) -> io::Result<Vec<u8>> {
        self.wait()?;
        let (_, length) = recv(&self.0, &mut [0; 0], RecvFlags::PEEK | RecvFlags::TRUNC)?;
        let mut buffer = vec![0; length.min(PART_MAX)];
        let length = self.receive_into(&mut buffer)?;
        buffer.truncate(length);
        Ok(buffer)
    }

    /// Receives a response or a part of a dump, and returns its length.
    fn receive_into(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait()?;
        Ok(recv(&self.0, buffer, RecvFlags::empty())?.0)
    }

    fn wait(&self) -> io::Result<()> {
        let is_ready = readable_by(&self.0, Instant::now() + RESPONSE_TIMEOUT)?;
        if is_ready { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One netlink message of a response.
struct Answer<'a> {
    kind: u16,
    flags: u16,
    body: &'a [u8],
}

/// Splits the bytes of a response into messages.
fn split(mut bytes: &[u8]) -> io::Result<Vec<Answer<'_>>> {
    let mut answers = Vec::new();
    while !bytes.is_empty() {
        let malformed = || io::Error::from(io::ErrorKind::InvalidData);
        let head: &[u8; HEADER] = bytes.first_chunk().ok_or_else(malformed)?;
        let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let (kind, flags) = (u16::from_ne_bytes([head[4], head[5]]), u16::from_ne_bytes([head[6], head[7]]));
        answers.push(Answer { kind, flags, body: bytes.get(HEADER..length).ok_or_else(malformed)? });
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(answers)
}

/// Returns the error number of an acknowledgement, or 0.
fn error_of(body: &[u8]) -> io::Result<i32> {
    let number = body.first_chunk().ok_or(io::ErrorKind::InvalidData)?;
    Ok(i32::from_ne_bytes(*number).wrapping_neg())
}

/// Encodes a netfilter message from its type, flags, sequence number, family, resource id and body.
pub(super) fn netfilter_message(
    kind: u16,
    flags: u16,
    (sequence, family, resource): (u32, u8, u16),
    body: &[u8],
) -> Vec<u8> {
    let flags = REQUEST | flags;
    let length = (HEADER + 4 + body.len()) as u32;
    let mut bytes = Vec::with_capacity(length as usize);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend([family, 0]);
    bytes.extend(resource.to_be_bytes());
    bytes.extend(body);
    bytes
}

/// Encodes an attribute, padded to four bytes.
pub(super) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = 4 + value.len() as u16;
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Encodes an attribute that contains attributes.
pub(super) fn nested(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NESTED, &parts.concat())
}

/// Encodes an attribute with a string.
pub(super) fn text(kind: u16, text: &str) -> Vec<u8> {
    attribute(kind, &[text.as_bytes(), &[0]].concat())
}

/// Encodes an attribute with a number in network byte order.
pub(super) fn number_be(kind: u16, number: u32) -> Vec<u8> {
    attribute(kind, &number.to_be_bytes())
}

/// Returns the attributes in these bytes. Stops at the first malformed attribute.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let head: &[u8; 4] = bytes.first_chunk()?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]) & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Returns the string of an attribute, without the terminating NUL.
pub(super) fn text_of(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_filled_up_and_split() {
        assert_eq!(attribute(7, b"ab"), [&6u16.to_ne_bytes()[..], &7u16.to_ne_bytes(), b"ab\0\0"].concat());
        assert_eq!(number_be(1, 3), [&8u16.to_ne_bytes()[..], &1u16.to_ne_bytes(), &[0, 0, 0, 3]].concat());
        let both = [text(3, "ab"), nested(4, &[number_be(1, 3)])].concat();
        let found: Vec<(u16, &[u8])> = attributes(&both).collect();
        assert_eq!(found, [(3, &b"ab\0"[..]), (4, &number_be(1, 3)[..])]);
        assert_eq!(text_of(found[0].1), "ab");
        assert_eq!(attributes(&both[..both.len() - 1]).count(), 1, "the second is cut off");
    }

    #[test]
    fn answers_are_split_and_checked() {
        let answer = |errno: i32| {
            let mut bytes = netfilter_message(ERROR, 0, (0, 0, 0), &[0; 16]);
            bytes[16..20].copy_from_slice(&errno.to_ne_bytes());
            bytes
        };
        let both = [answer(0), answer(-libc::EPERM)].concat();
        let errors: Vec<i32> = split(&both).unwrap().iter().map(|answer| error_of(answer.body).unwrap()).collect();
        assert_eq!(errors, [0, libc::EPERM]);
        assert!(split(&[1, 2, 3]).is_err());
        assert!(split(&[0; 20]).is_err(), "no length");
        assert!(error_of(&[1, 2]).is_err());
    }
}
