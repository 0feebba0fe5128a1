//! Defines rules for connections to destinations outside of a container's own network.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Protocol of the connections that a rule allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EgressProtocol {
    /// Every protocol.
    All,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP over IPv4.
    Icmp,
    /// ICMPv6.
    Icmpv6,
}

impl EgressProtocol {
    /// Returns the protocol's name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
            Self::Icmpv6 => "icmpv6",
        }
    }
}

/// A range of addresses, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressRange {
    /// First address of the range.
    pub first: IpAddr,
    /// Last address, of the same family as the first.
    pub last: IpAddr,
}

/// A range of ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRange {
    /// First port of the range.
    pub first: u16,
    /// Last port of the range.
    pub last: u16,
}

/// ICMP messages of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IcmpMessages {
    /// Type of the ICMP messages.
    pub kind: u8,
    /// Code of the ICMP messages; every code if unset.
    pub code: Option<u8>,
}

/// Destinations to which a container may open connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressRule {
    /// Protocol of the connections.
    pub protocol: EgressProtocol,
    /// Destination addresses.
    pub destinations: Vec<AddressRange>,
    /// Destination ports; every port if empty.
    pub ports: Vec<PortRange>,
    /// ICMP messages; every message if unset.
    pub icmp: Option<IcmpMessages>,
    /// True if new connections are written to the kernel's log.
    pub log: bool,
}

impl EgressRule {
    /// Returns the number of pairs of a destination and a port range.
    pub fn elements(&self) -> usize {
        self.destinations.len().saturating_mul(self.ports.len().max(1))
    }
}

/// Converts an address to a number; an IPv4 address uses the lowest 32 bits.
fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

/// Returns the length of the address in bits.
fn width(ip: IpAddr) -> u32 {
    if ip.is_ipv4() { 32 } else { 128 }
}

impl AddressRange {
    /// Returns true if both ends are of the same family, and the first is not after the last.
    pub fn is_ordered(&self) -> bool {
        self.first.is_ipv4() == self.last.is_ipv4() && self.first <= self.last
    }

    /// Returns the range of a network in CIDR notation; `None` if the prefix is too long.
    fn from_network(ip: IpAddr, prefix: u32) -> Option<Self> {
        let host = width(ip).checked_sub(prefix)?;
        let mask = u128::MAX.checked_shl(host).unwrap_or(0);
        let (first, last) = (number(ip) & mask, number(ip) | (!mask & (u128::MAX >> (128 - width(ip)))));
        let address = |number: u128| match ip {
            IpAddr::V4(_) => IpAddr::V4((number as u32).into()),
            IpAddr::V6(_) => IpAddr::V6(number.into()),
        };
        Some(Self { first: address(first), last: address(last) })
    }
}

/// Error from parsing a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRange {
    /// The string is not an address, a network or a range.
    #[error("is not an address, a network (192.0.2.0/24) or a range (192.0.2.1-192.0.2.9)")]
    Form,
    /// The ends are of different families.
    #[error("mixes IPv4 and IPv6")]
    Mixed,
    /// The last address is before the first address.
    #[error("has an end that is before its start")]
    Order,
}

impl FromStr for AddressRange {
    type Err = BadRange;

    fn from_str(text: &str) -> Result<Self, BadRange> {
        let address = |text: &str| text.trim().parse::<IpAddr>().map_err(|_| BadRange::Form);
        if let Some((ip, prefix)) = text.split_once('/') {
            let digits = !prefix.is_empty() && prefix.bytes().all(|b| b.is_ascii_digit());
            let prefix = prefix.parse().ok().filter(|_| digits).ok_or(BadRange::Form)?;
            return Self::from_network(address(ip)?, prefix).ok_or(BadRange::Form);
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = Self { first: address(first)?, last: address(last)? };
        match range {
            Self { first, last } if first.is_ipv4() != last.is_ipv4() => Err(BadRange::Mixed),
            range if !range.is_ordered() => Err(BadRange::Order),
            range => Ok(range),
        }
    }
}

/// Formats the range in its shortest notation: an address, a network, or both ends.
impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last } = self;
        if first == last {
            return first.fmt(f);
        }
        let network = (0..width(*first)).find(|prefix| Self::from_network(*first, *prefix) == Some(*self));
        match network {
            Some(prefix) => write!(f, "{first}/{prefix}"),
            None => write!(f, "{first}-{last}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_written() {
        let table = [
            ("192.0.2.1", "192.0.2.1"),
            ("192.0.2.9/24", "192.0.2.0/24"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("192.0.2.1/32", "192.0.2.1"),
            ("192.0.2.0-192.0.2.255", "192.0.2.0/24"),
            ("192.0.2.1 - 192.0.2.9", "192.0.2.1-192.0.2.9"),
            ("11.0.0.0-169.253.255.255", "11.0.0.0-169.253.255.255"),
            ("fd00::/8", "fd00::/8"),
            ("::/0", "::/0"),
            ("::1", "::1"),
            ("2001:db8::-2001:db8::ffff", "2001:db8::/112"),
            ("2001:db8::1-2001:db8::2", "2001:db8::1-2001:db8::2"),
        ];
        for (text, shown) in table {
            let range: AddressRange = text.parse().unwrap_or_else(|why| panic!("{text}: {why}"));
            assert_eq!(range.to_string(), shown, "{text}");
            assert_eq!(shown.parse(), Ok(range), "{text}");
        }
        let network: AddressRange = "10.1.2.3/20".parse().unwrap();
        assert_eq!((network.first, network.last), ("10.1.0.0".parse().unwrap(), "10.1.15.255".parse().unwrap()));
        let bad = [
            ("", BadRange::Form),
            ("x", BadRange::Form),
            ("192.0.2.1/33", BadRange::Form),
            ("192.0.2.1/", BadRange::Form),
            ("192.0.2.1/+8", BadRange::Form),
            ("::/129", BadRange::Form),
            ("192.0.2.1/24-192.0.2.9", BadRange::Form),
            ("1.1.1.1-2.2.2.2-3.3.3.3", BadRange::Form),
            ("192.0.2.1-::1", BadRange::Mixed),
            ("192.0.2.9-192.0.2.1", BadRange::Order),
            ("::2-::1", BadRange::Order),
        ];
        for (text, why) in bad {
            assert_eq!(text.parse::<AddressRange>(), Err(why), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn the_shortest_form_means_the_same(one: u32, other: u32, prefix in 0u32..=32) {
            let address = |number: u32| IpAddr::V4(number.into());
            let range = AddressRange { first: address(one.min(other)), last: address(one.max(other)) };
            proptest::prop_assert_eq!(range.to_string().parse(), Ok(range));
            let network = AddressRange::from_network(address(one), prefix).unwrap();
            proptest::prop_assert!(network.is_ordered() && network.first <= address(one) && address(one) <= network.last);
            proptest::prop_assert_eq!(network.to_string().parse(), Ok(network));
        }
    }
}
