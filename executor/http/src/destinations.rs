//! Addresses that a connection may be made to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use executor_core::plan::AddressRange;

use crate::Reach;

/// Rule for the addresses of a request's host, applied to each address after the name was resolved.
#[derive(Clone, Copy, Debug)]
pub enum Destinations<'a> {
    /// Every address.
    Any,
    /// The host was named by a server of this reach: it may be public, or as near as that server.
    NamedBy(Reach),
    /// Lists of the operator's.
    Listed(&'a AddressLists),
}

/// Addresses that are denied, and exceptions. This machine's own addresses are denied, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressLists {
    /// Denied addresses.
    pub denied: Vec<AddressRange>,
    /// Exceptions from these, and from this machine's own addresses.
    pub allowed: Vec<AddressRange>,
}

impl Destinations<'_> {
    /// Judges an address.
    pub(crate) fn admit(self, address: IpAddr) -> Result<(), &'static str> {
        match self {
            Self::Any => Ok(()),
            Self::NamedBy(by) => Reach::of(address).may_be_named_by(by),
            Self::Listed(lists) => lists.admit(address),
        }
    }
}

impl AddressLists {
    fn admit(&self, address: IpAddr) -> Result<(), &'static str> {
        let meant = meant(address);
        let listed = |list: &[AddressRange]| list.iter().any(|range| meant.iter().any(|one| contains(range, *one)));
        if listed(&self.allowed) {
            return Ok(());
        }
        if listed(&self.denied) {
            return Err("its address is denied by this daemon's configuration (transfers.denied)");
        }
        if is_own(address) {
            return Err("its address is this machine's own");
        }
        Ok(())
    }
}

fn contains(range: &AddressRange, address: IpAddr) -> bool {
    range.first.is_ipv4() == address.is_ipv4() && (range.first..=range.last).contains(&address)
}

/// Returns an address, and the IPv4 address that it stands for: mapped (RFC 4291), translated on the way (RFC 6052), or
/// tunnelled (RFC 3056).
fn meant(address: IpAddr) -> Vec<IpAddr> {
    let mut meant = vec![address];
    if let IpAddr::V6(v6) = address {
        meant.extend(embedded(v6).map(IpAddr::V4));
    }
    meant
}

fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let of = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match address.segments() {
        // The unspecified address and loopback are of their own kind.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(of(high, low)),
        [0x2002, high, low, ..] => Some(of(high, low)),
        _ => None,
    }
}

/// Returns whether the address is one of this machine: what is sent there comes from the same address. Nothing is sent.
fn is_own(address: IpAddr) -> bool {
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let from = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    from.is_ok_and(|from| from.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(denied: &[&str], allowed: &[&str]) -> AddressLists {
        let ranges = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        AddressLists { denied: ranges(denied), allowed: ranges(allowed) }
    }

    #[test]
    fn a_denied_address_is_denied_in_all_its_forms() {
        let lists = lists(&["169.254.0.0/16", "10.0.0.0/8", "fe80::/10"], &["10.1.0.0/16"]);
        let table = [
            ("169.254.169.254", false),
            ("::ffff:169.254.169.254", false),
            ("64:ff9b::a9fe:a9fe", false),
            ("2002:a9fe:a9fe::1", false),
            ("::169.254.169.254", false),
            ("10.2.0.1", false),
            ("10.1.0.1", true),
            ("::ffff:10.1.0.1", true),
            ("fe80::1", false),
            ("93.184.216.34", true),
            ("2606:4700::1", true),
        ];
        for (address, admitted) in table {
            assert_eq!(lists.admit(address.parse().unwrap()).is_ok(), admitted, "{address}");
        }
    }

    #[test]
    fn this_machines_own_addresses_need_an_exception() {
        for own in ["127.0.0.1", "127.9.9.9"] {
            let own: IpAddr = own.parse().unwrap();
            // Loopback answers from the address that is asked.
            let expected = is_own(own);
            assert_eq!(lists(&[], &[]).admit(own).is_err(), expected, "{own}");
        }
        assert!(is_own("127.0.0.1".parse().unwrap()));
        assert!(lists(&[], &["127.0.0.0/8"]).admit("127.0.0.1".parse().unwrap()).is_ok());
    }
}
