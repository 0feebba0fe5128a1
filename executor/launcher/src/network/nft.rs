//! The subset of nf_tables that [`super::egress`] needs, over netlink.
//!
//! Neither `nft` nor `iptables` need be installed, and the rules come into force together or not at all. Numbers are
//! those of `linux/netfilter/nf_tables.h`.

use std::io;
use std::time::{Duration, Instant};

use executor_sys::ready::readable_by;
use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::sockopt::set_socket_send_buffer_size_force;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

/// Time limit for the kernel to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// `AF_INET` and `AF_INET6` as nf_tables numbers families.
pub(super) const IPV4: u8 = 2;
pub(super) const IPV6: u8 = 10;
/// Family of a table for both.
const INET: u8 = 1;
/// The only register in use.
const REGISTER: u32 = 1;
const SUBSYSTEM: u16 = 10;
const NESTED: u16 = 0x8000;
/// Flags of messages.
const ACKNOWLEDGE: u16 = 0x4;
const CREATE_APPEND: u16 = 0x400 | 0x800;
/// Burst of a rate limit, in packets.
const BURST: u32 = 5;
/// Bytes of a socket's send buffer in addition to the batch.
const SEND_ROOM: usize = 64 << 10;

/// Hook of a chain.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hook {
    /// Forwarded packets.
    Forward,
    /// Packets of local processes.
    Output,
}

/// A step of a rule; the rule ends at the first step that does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Matches the outgoing interface by its index.
    Interface(u32),
    /// Matches the family.
    Family(u8),
    /// Matches the transport protocol.
    Transport(u8),
    /// Matches if the connection's state is one of these bits.
    State(u32),
    /// Matches bytes of the network header under a mask.
    Header {
        offset: u32,
        value: Vec<u8>,
        mask: Vec<u8>,
    },
    /// Matches the first byte of the transport header.
    Kind(u8),
    /// Matches the second byte of the transport header.
    Code(u8),
    /// Matches if bytes of the network header are in this range, inclusive.
    HeaderRange {
        offset: u32,
        first: Vec<u8>,
        last: Vec<u8>,
    },
    /// Matches if the destination port is in this range, inclusive.
    Ports(u16, u16),
    /// Matches at most this many packets per second.
    Limit(u64),
    /// Writes the packet to the kernel log with this prefix, and continues.
    Log(String),
    Accept,
    /// Drops the packet without a reply.
    Drop,
    /// Rejects the packet with an error to the process: administratively prohibited.
    Reject,
}

/// Packets of an established connection.
pub(super) const ESTABLISHED: u32 = 1 << 1;
/// Errors about such a connection.
pub(super) const RELATED: u32 = 1 << 2;

/// Makes a table with these chains, whose policy is drop, in the network namespace of the calling process, or replaces
/// the rules of the existing chains.
///
/// # Errors
/// Returns the kernel's first error; nothing is changed then.
pub(super) fn commit(table: &str, chains: &[(&str, Hook, Vec<Vec<Step>>)]) -> io::Result<()> {
    let batch = encode(table, chains);
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(NETFILTER))?;
    // A batch is sent as a whole, whatever its size.
    set_socket_send_buffer_size_force(&socket, batch.len() + SEND_ROOM)?;
    sendto(&socket, &batch, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut buffer = vec![0; 64 << 10];
    // Only the last message asks for an acknowledgement. Errors come before it in any case.
    let mut seen = 0;
    while seen == 0 {
        if !readable_by(&socket, Instant::now() + PATIENCE)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let (length, _) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        seen += acknowledged(&buffer[..length])?;
    }
    Ok(())
}

/// Counts acknowledgements.
///
/// # Errors
/// Returns the first error among them.
fn acknowledged(mut bytes: &[u8]) -> io::Result<usize> {
    const ERROR: u16 = 2;
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    let mut count = 0;
    while bytes.len() >= 20 {
        let length = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
        if u16::from_ne_bytes([bytes[4], bytes[5]]) == ERROR {
            match i32::from_ne_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]) {
                0 => count += 1,
                errno => return Err(io::Error::from_raw_os_error(-errno)),
            }
        }
        bytes = bytes.get(length.next_multiple_of(4).max(16)..).unwrap_or_default();
    }
    if bytes.is_empty() { Ok(count) } else { Err(malformed()) }
}

fn encode(table: &str, chains: &[(&str, Hook, Vec<Vec<Step>>)]) -> Vec<u8> {
    const NEW_TABLE: u16 = 0;
    const NEW_CHAIN: u16 = 3;
    const NEW_RULE: u16 = 6;
    const DELETE_RULE: u16 = 8;
    let mut messages = vec![(NEW_TABLE, text(1, table))];
    for (name, hook, _) in chains {
        let number: u32 = match hook {
            Hook::Forward => 2,
            Hook::Output => 3,
        };
        let place = nested(4, &[number_be(1, number), number_be(2, 0)]);
        let drop = number_be(5, 0);
        messages.push((NEW_CHAIN, [text(1, table), text(3, name), place, drop, text(7, "filter")].concat()));
    }
    // Deletes all rules of the chain, because no rule is named.
    messages.extend(chains.iter().map(|(name, ..)| (DELETE_RULE, [text(1, table), text(2, name)].concat())));
    for (name, _, rules) in chains {
        for rule in rules {
            let steps: Vec<Vec<u8>> = rule.iter().flat_map(expressions).map(|one| nested(1, &[one])).collect();
            messages.push((NEW_RULE, [text(1, table), text(2, name), nested(4, &steps)].concat()));
        }
    }
    let last = messages.len();
    let mut batch = message(0x10, 0, (0, 0, SUBSYSTEM), &[]);
    for (sequence, (kind, body)) in (1..).zip(messages) {
        let flags = if kind == DELETE_RULE { 0 } else { CREATE_APPEND };
        let flags = if sequence as usize == last { flags | ACKNOWLEDGE } else { flags };
        batch.extend(message(SUBSYSTEM << 8 | kind, flags, (sequence, INET, 0), &body));
    }
    batch.extend(message(0x11, 0, (0, 0, SUBSYSTEM), &[]));
    batch
}

fn message(kind: u16, flags: u16, (sequence, family, resource): (u32, u8, u16), body: &[u8]) -> Vec<u8> {
    const REQUEST: u16 = 0x1;
    let flags = REQUEST | flags;
    let length = 20 + body.len() as u32;
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

fn expressions(step: &Step) -> Vec<Vec<u8>> {
    const EQUAL: u32 = 0;
    const UNEQUAL: u32 = 1;
    const AT_MOST: u32 = 3;
    const AT_LEAST: u32 = 5;
    let compare = |operator, value: &[u8]| {
        expression("cmp", &[number_be(1, REGISTER), number_be(2, operator), nested(3, &[attribute(1, value)])])
    };
    let meta = |key: u32, value: &[u8]| {
        vec![expression("meta", &[number_be(1, REGISTER), number_be(2, key)]), compare(EQUAL, value)]
    };
    let load = |base: u32, offset: u32, length: u32| {
        expression("payload", &[number_be(1, REGISTER), number_be(2, base), number_be(3, offset), number_be(4, length)])
    };
    let mask = |mask: &[u8]| {
        let zero = vec![0; mask.len()];
        let bits = [nested(4, &[attribute(1, mask)]), nested(5, &[attribute(1, &zero)])].concat();
        let length = number_be(3, mask.len() as u32);
        expression("bitwise", &[number_be(1, REGISTER), number_be(2, REGISTER), length, bits])
    };
    let between = |load: Vec<u8>, first: &[u8], last: &[u8]| {
        if first == last {
            return vec![load, compare(EQUAL, first)];
        }
        vec![load, compare(AT_LEAST, first), compare(AT_MOST, last)]
    };
    let verdict = |code: u32| {
        let verdict = nested(2, &[nested(2, &[number_be(1, code)])]);
        vec![expression("immediate", &[number_be(1, 0), verdict])]
    };
    match step {
        Step::Interface(index) => meta(5, &index.to_ne_bytes()),
        Step::Family(family) => meta(15, &[*family]),
        Step::Transport(protocol) => meta(16, &[*protocol]),
        Step::State(bits) => vec![
            expression("ct", &[number_be(1, REGISTER), number_be(2, 0)]),
            mask(&bits.to_ne_bytes()),
            compare(UNEQUAL, &0u32.to_ne_bytes()),
        ],
        Step::Header { offset, value, mask: bits } => {
            let masked: Vec<u8> = value.iter().zip(bits).map(|(value, bit)| value & bit).collect();
            vec![load(1, *offset, value.len() as u32), mask(bits), compare(EQUAL, &masked)]
        }
        Step::Kind(kind) => vec![load(2, 0, 1), compare(EQUAL, &[*kind])],
        Step::Code(code) => vec![load(2, 1, 1), compare(EQUAL, &[*code])],
        Step::HeaderRange { offset, first, last } => between(load(1, *offset, first.len() as u32), first, last),
        Step::Ports(first, last) => between(load(2, 2, 2), &first.to_be_bytes(), &last.to_be_bytes()),
        Step::Limit(a_second) => {
            let (rate, unit) = (attribute(1, &a_second.to_be_bytes()), attribute(2, &1u64.to_be_bytes()));
            vec![expression("limit", &[rate, unit, number_be(3, BURST), number_be(4, 0), number_be(5, 0)])]
        }
        Step::Log(prefix) => vec![expression("log", &[text(2, prefix)])],
        Step::Accept => verdict(1),
        Step::Drop => verdict(0),
        // Works for both families: administratively prohibited.
        Step::Reject => vec![expression("reject", &[number_be(1, 2), attribute(2, &[3])])],
    }
}

fn expression(name: &str, parts: &[Vec<u8>]) -> Vec<u8> {
    [text(1, name), nested(2, parts)].concat()
}

/// Encodes an attribute, padded to four bytes.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = 4 + value.len() as u16;
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn nested(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NESTED, &parts.concat())
}

fn text(kind: u16, text: &str) -> Vec<u8> {
    attribute(kind, &[text.as_bytes(), &[0]].concat())
}

fn number_be(kind: u16, number: u32) -> Vec<u8> {
    attribute(kind, &number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_filled_up() {
        assert_eq!(attribute(7, b"ab"), [&6u16.to_ne_bytes()[..], &7u16.to_ne_bytes(), b"ab\0\0"].concat());
        assert_eq!(number_be(1, 3), [&8u16.to_ne_bytes()[..], &1u16.to_ne_bytes(), &[0, 0, 0, 3]].concat());
    }

    #[test]
    fn a_batch_is_a_sequence_of_whole_messages() {
        let rules = vec![
            vec![Step::Interface(1), Step::Accept],
            vec![Step::Header { offset: 16, value: vec![10, 1, 0, 5], mask: vec![255, 255, 0, 0] }, Step::Accept],
            vec![Step::Reject],
        ];
        let batch = encode("t", &[("output", Hook::Output, rules), ("forward", Hook::Forward, Vec::new())]);
        let mut rest = &batch[..];
        let (mut kinds, mut acknowledged) = (Vec::new(), Vec::new());
        while !rest.is_empty() {
            let length = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
            kinds.push(u16::from_ne_bytes(rest[4..6].try_into().unwrap()));
            acknowledged.push(u16::from_ne_bytes(rest[6..8].try_into().unwrap()) & ACKNOWLEDGE != 0);
            rest = &rest[length..];
        }
        assert_eq!(kinds, [0x10, 0xa00, 0xa03, 0xa03, 0xa08, 0xa08, 0xa06, 0xa06, 0xa06, 0x11]);
        assert_eq!(acknowledged, [false, false, false, false, false, false, false, false, true, false]);
    }

    #[test]
    fn refusals_are_found_among_acknowledgements() {
        let answer = |errno: i32| {
            let mut bytes = message(2, 0, (0, 0, 0), &[0; 16]);
            bytes[16..20].copy_from_slice(&errno.to_ne_bytes());
            bytes
        };
        assert_eq!(acknowledged(&[answer(0), answer(0)].concat()).unwrap(), 2);
        let refused = acknowledged(&[answer(0), answer(-libc::EPERM)].concat()).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        assert!(acknowledged(&[1, 2, 3]).is_err());
        assert_eq!(acknowledged(&[0; 20]).map_err(|error| error.kind()), Err(io::ErrorKind::InvalidData), "no length");
    }
}
