//! Deletes connection tracking entries that outlive a container. Otherwise packets of an old flow could reach the next
//! container with the same address, or could miss the next container with the same port.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd as _;

use crate::host::Host;
use crate::network::netlink::{
    self, ACKNOWLEDGE, DUMP, NETFILTER_SUBSYSTEM_CONNTRACK as SUBSYSTEM, NetlinkSocket, attribute, attributes, nested,
    netfilter_message,
};
use crate::network::nft::{IPV4, IPV6};
use crate::sysctl;

const GET: u16 = 1;
const DELETE: u16 = 2;
/// Attributes of a connection tracking entry.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
/// Attributes of a tuple: one direction of a tracked connection.
const ADDRESSES: u16 = 1;
const PROTOCOL: u16 = 2;
const DESTINATION_PORT: u16 = 3;
/// Flags of a filter, which select the fields of an entry to compare.
const BY_SOURCE: u32 = 1;
const BY_PROTOCOL: u32 = 1 << 3;
const BY_DESTINATION_PORT: u32 = 1 << 5;
const UDP: u8 = 17;

/// Deletes the entries of UDP flows of an address: outgoing flows if `opened.0` is true, and incoming flows if
/// `opened.1` is true. For each direction, the kernel walks its whole table, which takes milliseconds.
///
/// # Errors
/// Returns the kernel's error if the kernel refuses the request.
pub(super) fn delete_address(ip: IpAddr, opened: (bool, bool)) -> io::Result<()> {
    let (family, octets, source) = match ip {
        IpAddr::V4(ip) => (IPV4, ip.octets().to_vec(), 1),
        IpAddr::V6(ip) => (IPV6, ip.octets().to_vec(), 3),
    };
    let to_match = [nested(ADDRESSES, &[attribute(source, &octets)]), nested(PROTOCOL, &[attribute(1, &[UDP])])];
    let by = BY_SOURCE | BY_PROTOCOL;
    if opened.0 {
        delete(family, &[nested(ORIGINAL, &to_match), filter(by, 0)].concat())?;
    }
    if opened.1 {
        // In flows from other hosts, the container is the source of the reply.
        delete(family, &[nested(REPLY, &to_match), filter(0, by)].concat())?;
    }
    Ok(())
}

/// Deletes the entries of UDP flows to a host port. Packets of existing flows would not be translated.
///
/// # Errors
/// Returns the kernel's error if the kernel refuses the request.
pub(super) fn delete_udp_port(host: &Host, port: u16) -> io::Result<()> {
    if is_empty(host) {
        return Ok(());
    }
    let to = nested(PROTOCOL, &[attribute(1, &[UDP]), attribute(DESTINATION_PORT, &port.to_be_bytes())]);
    for family in [IPV4, IPV6] {
        let to = nested(ORIGINAL, std::slice::from_ref(&to));
        delete(family, &[to, filter(BY_PROTOCOL | BY_DESTINATION_PORT, 0)].concat())?;
    }
    Ok(())
}

fn filter(original: u32, reply: u32) -> Vec<u8> {
    // Both numbers are in host byte order.
    nested(FILTER, &[attribute(1, &original.to_ne_bytes()), attribute(2, &reply.to_ne_bytes())])
}

/// Returns true if the kernel tracks no connection.
fn is_empty(host: &Host) -> bool {
    let count = sysctl::read(host.proc.as_fd(), "net/netfilter/nf_conntrack_count");
    count.is_ok_and(|count| count.trim() == "0")
}

fn delete(family: u8, filter: &[u8]) -> io::Result<()> {
    let request = netfilter_message(SUBSYSTEM << 8 | GET, DUMP, (1, family, 0), filter);
    for entry in netlink::dump(NetlinkSocket::netfilter, &request)? {
        let mut parts = Vec::new();
        for (kind, value) in attributes(entry.get(4..).unwrap_or_default()) {
            match kind {
                ORIGINAL => parts.push(nested(ORIGINAL, &[value.to_vec()])),
                ID | ZONE => parts.push(attribute(kind, value)),
                _ => {}
            }
        }
        let socket = NetlinkSocket::netfilter()?;
        socket.send(&netfilter_message(SUBSYSTEM << 8 | DELETE, ACKNOWLEDGE, (1, family, 0), &parts.concat()))?;
        match socket.acknowledged(1) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {} // the flow has expired in the meantime
            deleted => deleted?,
        }
    }
    Ok(())
}
