//! Rules for the addresses that a connection may be made to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use executor_core::plan::AddressRange;

use crate::{Reach, forms};

/// Rule for the addresses of a request's host, applied to each address after name resolution.
#[derive(Clone, Copy, Debug)]
pub enum Destinations<'a> {
    Any,
    /// A server with this reach named the host: the host's address must be public, or have the same reach and not be
    /// link-local.
    NamedBy(Reach),
    /// The host previously resolved to an address with this reach: the new address must be public or have the same
    /// reach.
    AnsweredAt(Reach),
    /// The address must satisfy the operator's lists.
    Listed(&'a AddressLists),
}

/// Denied addresses with exceptions. This machine's own addresses are denied, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressLists {
    pub denied: Vec<AddressRange>,
    /// Exceptions from `denied` and from the denial of this machine's own addresses.
    pub allowed: Vec<AddressRange>,
}

impl Destinations<'_> {
    /// Checks that an address is allowed. Otherwise returns the reason.
    pub(crate) fn admit(self, address: IpAddr) -> Result<(), &'static str> {
        match self {
            Self::Any => Ok(()),
            Self::NamedBy(by) => Reach::from_address(address).may_be_named_by(by),
            Self::AnsweredAt(before) => match Reach::from_address(address) {
                Reach::Public => Ok(()),
                same if same == before => Ok(()),
                _ => Err("the host name now resolves to an address that is private, link-local or this machine's own"),
            },
            Self::Listed(lists) => lists.admit(address),
        }
    }
}

impl AddressLists {
    fn admit(&self, address: IpAddr) -> Result<(), &'static str> {
        let checked = forms::with_embedded(address);
        let listed = |list: &[AddressRange]| list.iter().any(|range| checked.iter().any(|one| contains(range, *one)));
        if listed(&self.allowed) {
            return Ok(());
        }
        if listed(&self.denied) {
            return Err("the address is denied by this daemon's configuration (transfers.denied)");
        }
        if checked.into_iter().any(is_own) {
            return Err("the address is this machine's own");
        }
        Ok(())
    }
}

fn contains(range: &AddressRange, address: IpAddr) -> bool {
    range.first.is_ipv4() == address.is_ipv4() && (range.first..=range.last).contains(&address)
}

/// Returns true if the address belongs to this machine: the kernel then uses the same address as the source address of
/// a connection. Sends nothing.
fn is_own(address: IpAddr) -> bool {
    // Linux connects the unspecified address to loopback.
    if address.is_unspecified() {
        return true;
    }
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
    fn denied_address_is_denied_in_every_form() {
        let lists = lists(&["169.254.0.0/16", "10.0.0.0/8", "fe80::/10"], &["10.1.0.0/16"]);
        let table = [("169.254.169.254", false), ("10.2.0.1", false), ("10.1.0.1", true), ("93.184.216.34", true)];
        for (address, admitted) in table {
            for form in forms::forms(address.parse().unwrap()) {
                assert_eq!(lists.admit(form.parse().unwrap()).is_ok(), admitted, "{address} as {form}");
            }
        }
        for (address, admitted) in [("fe80::1", false), ("2606:4700::1", true)] {
            assert_eq!(lists.admit(address.parse().unwrap()).is_ok(), admitted, "{address}");
        }
    }

    #[test]
    fn own_address_in_every_form_needs_exception() {
        for own in ["127.0.0.1", "0.0.0.0"] {
            // `translated_locally` skips candidates that begin with 0, so 64:ff9b:1::/48 has no form of 0.0.0.0.
            let forms = forms::forms(own.parse().unwrap()).into_iter();
            for form in forms.filter(|form| own != "0.0.0.0" || !form.starts_with("64:ff9b:1:")) {
                assert!(lists(&[], &[]).admit(form.parse().unwrap()).is_err(), "{own} as {form}");
            }
        }
        assert!(lists(&[], &["0.0.0.0/32"]).admit("0.0.0.0".parse().unwrap()).is_ok());
    }

    #[test]
    fn redirect_reaches_no_nearer_address() {
        let table = [
            (Reach::Public, "93.184.216.34", true),
            (Reach::Public, "10.1.2.3", false),
            (Reach::Public, "::ffff:127.0.0.1", false),
            (Reach::Private, "10.1.2.3", true),
            (Reach::Private, "127.0.0.1", false),
            (Reach::Loopback, "127.0.0.1", true),
            (Reach::Loopback, "93.184.216.34", true),
            (Reach::LinkLocal, "169.254.1.1", true),
            (Reach::LinkLocal, "127.0.0.1", false),
        ];
        for (before, address, admitted) in table {
            let result = Destinations::AnsweredAt(before).admit(address.parse().unwrap());
            assert_eq!(result.is_ok(), admitted, "{address} after {before:?}");
        }
    }

    #[test]
    fn this_machines_own_addresses_need_an_exception() {
        for own in ["127.0.0.1", "127.9.9.9"] {
            let own: IpAddr = own.parse().unwrap();
            // Loopback uses the destination address as the source.
            let expected = is_own(own);
            assert_eq!(lists(&[], &[]).admit(own).is_err(), expected, "{own}");
        }
        assert!(is_own("127.0.0.1".parse().unwrap()));
        assert!(lists(&[], &["127.0.0.0/8"]).admit("127.0.0.1".parse().unwrap()).is_ok());
    }
}
