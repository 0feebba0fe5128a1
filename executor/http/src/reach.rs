//! Reach of IP addresses: Internet, site, machine, link.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::forms;

/// Reach of an address, which determines the servers that may name it. Ordered from far to near.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// An address of the Internet.
    Public,
    /// An address of a private or special-purpose network, which is not routed on the Internet.
    Private,
    /// An address of this machine.
    Loopback,
    /// A link-local address, such as the address of a cloud metadata service, or an address that belongs to no host.
    LinkLocal,
}

impl Reach {
    /// Classifies an address. For an IPv6 address that embeds IPv4 addresses, returns the nearest reach of all of these
    /// addresses.
    pub fn from_address(address: IpAddr) -> Self {
        let reach = |one| match one {
            IpAddr::V4(address) => classify_v4(address),
            IpAddr::V6(address) => classify_v6(address),
        };
        forms::with_embedded(address).into_iter().map(reach).max().unwrap_or(Self::LinkLocal)
    }

    /// Checks that a server with the reach `by` may name a host with this reach.
    ///
    /// # Errors
    /// Returns the reason if the name is not permitted.
    pub fn may_be_named_by(self, by: Self) -> Result<(), &'static str> {
        match self {
            Self::Public => Ok(()),
            Self::LinkLocal => Err("the address is link-local"),
            same if same == by => Ok(()),
            Self::Private => Err("the address is private, but the address of the server that named it is not"),
            Self::Loopback => {
                Err("the address is this machine's own, but the address of the server that named it is not")
            }
        }
    }
}

fn classify_v4(address: Ipv4Addr) -> Reach {
    match address.octets() {
        [127 | 0, ..] => Reach::Loopback,
        [169, 254, ..] | [224..=255, ..] => Reach::LinkLocal,
        [10, ..] | [192, 168, ..] | [172, 16..=31, ..] => Reach::Private,
        // Carrier-grade NAT (RFC 6598), protocol assignments (RFC 6890), benchmarks (RFC 2544).
        [100, 64..=127, ..] | [192, 0, 0, _] | [198, 18..=19, ..] => Reach::Private,
        _ => Reach::Public,
    }
}

fn classify_v6(address: Ipv6Addr) -> Reach {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => Reach::Loopback,
        // Translators of the site (RFC 8215).
        [0x64, 0xff9b, 1, ..] => Reach::Private,
        [first, ..] if first & 0xffc0 == 0xfe80 || first & 0xff00 == 0xff00 => Reach::LinkLocal,
        [first, ..] if first & 0xfe00 == 0xfc00 => Reach::Private,
        // Deprecated site-local addresses.
        [first, ..] if first & 0xffc0 == 0xfec0 => Reach::Private,
        _ => Reach::Public,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_all_their_forms() {
        let table = [
            ("93.184.216.34", Reach::Public),
            ("127.0.0.1", Reach::Loopback),
            ("127.8.9.1", Reach::Loopback),
            ("0.0.0.0", Reach::Loopback),
            ("10.1.2.3", Reach::Private),
            ("172.16.0.1", Reach::Private),
            ("172.32.0.1", Reach::Public),
            ("192.168.1.1", Reach::Private),
            ("100.64.0.1", Reach::Private),
            ("169.254.169.254", Reach::LinkLocal),
            ("224.0.0.1", Reach::LinkLocal),
            ("255.255.255.255", Reach::LinkLocal),
            ("2606:4700::1", Reach::Public),
            ("::1", Reach::Loopback),
            ("::", Reach::Loopback),
            ("fe80::1", Reach::LinkLocal),
            ("fd00:ec2::254", Reach::Private),
            ("fec0::1", Reach::Private),
            ("ff02::1", Reach::LinkLocal),
        ];
        for (address, reach) in table {
            assert_eq!(Reach::from_address(address.parse().unwrap()), reach, "{address}");
        }
    }

    #[test]
    fn ipv4_reach_is_same_in_every_form() {
        let table = [
            ("127.0.0.1", Reach::Loopback),
            ("10.1.2.3", Reach::Private),
            ("169.254.169.254", Reach::LinkLocal),
            ("93.184.216.34", Reach::Public),
        ];
        for (address, reach) in table {
            for form in forms::forms(address.parse().unwrap()) {
                // The prefix itself is private.
                let reach = if form.starts_with("64:ff9b:1:") { reach.max(Reach::Private) } else { reach };
                assert_eq!(Reach::from_address(form.parse().unwrap()), reach, "{address} as {form}");
            }
        }
    }

    #[test]
    fn named_address_is_public_or_same_reach() {
        use Reach::{LinkLocal, Loopback, Private, Public};
        for by in [Public, Private, Loopback, LinkLocal] {
            for host in [Public, Private, Loopback, LinkLocal] {
                let may = host == Public || (host == by && host != LinkLocal);
                assert_eq!(host.may_be_named_by(by).is_ok(), may, "{host:?} by {by:?}");
            }
        }
    }
}
