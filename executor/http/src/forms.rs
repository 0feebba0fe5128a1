//! IPv4 addresses that an IPv6 address represents, so that a rule for an IPv4 address also applies to the IPv6
//! addresses that represent it.
//!
//! The kernel or a translator in the network may convert packets to such an address into IPv4 packets.
//! [`Reach`](crate::Reach) and [`AddressLists`](crate::AddressLists) check every address of [`with_embedded`]. The
//! network may have further prefixes for translation (RFC 6052); the operator must deny addresses with these prefixes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns an address and the IPv4 addresses that it represents.
pub(crate) fn with_embedded(address: IpAddr) -> Vec<IpAddr> {
    let mut all = vec![address];
    if let IpAddr::V6(v6) = address {
        all.extend(embedded(v6).into_iter().map(IpAddr::V4));
    }
    all
}

fn embedded(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    let of = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match address.segments() {
        // The unspecified address and loopback represent no IPv4 address.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => Vec::new(),
        // Compatible (RFC 4291, 2.5.5.1), mapped (2.5.5.2), translated (RFC 2765, 2.1).
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => vec![of(high, low)],
        // The well-known prefix of translators (RFC 6052).
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => vec![of(high, low)],
        [0x64, 0xff9b, 1, ..] => translated_locally(address),
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => vec![of(high, low)],
        // Teredo: the server, and the client with all bits inverted (RFC 4380, 4).
        [0x2001, 0, s_high, s_low, _, _, c_high, c_low] => vec![of(s_high, s_low), of(!c_high, !c_low)],
        // ISATAP, in every prefix (RFC 5214, 6.1).
        [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => vec![of(high, low)],
        _ => Vec::new(),
    }
}

/// Returns the IPv4 addresses that an address in the prefix for local translators (RFC 8215) may represent. The site's
/// prefix length is unknown, and each prefix length places the IPv4 address differently (RFC 6052, 2.2).
fn translated_locally(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    const PLACES: [[usize; 4]; 4] = [[6, 7, 9, 10], [7, 9, 10, 11], [9, 10, 11, 12], [12, 13, 14, 15]];
    let octets = address.octets();
    let found = PLACES.map(|place| Ipv4Addr::from(place.map(|at| octets[at])));
    // Skip candidates that begin with 0: with another prefix length these octets belong to the prefix or the padding.
    found.into_iter().filter(|found| found.octets()[0] != 0).collect()
}

/// Returns an IPv4 address and the IPv6 addresses that represent it, as text.
#[cfg(test)]
pub(crate) fn forms(address: Ipv4Addr) -> Vec<String> {
    let [a, b, c, d] = address.octets();
    let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let (last, inverted) = (format!("{high:x}:{low:x}"), format!("{:x}:{:x}", !high, !low));
    vec![
        address.to_string(),
        format!("::{last}"),
        format!("::ffff:{last}"),
        format!("::ffff:0:{last}"),
        format!("64:ff9b::{last}"),
        format!("64:ff9b:1:{high:x}:{c:x}:{d:02x}00::"),
        format!("64:ff9b:1:{a:x}:{b:x}:{low:x}::"),
        format!("64:ff9b:1:0:{a:x}:{b:x}{c:02x}:{d:02x}00:0"),
        format!("64:ff9b:1::{last}"),
        format!("2002:{last}::1"),
        format!("2001:0:5db8:d822:0:0:{inverted}"),
        format!("2001:0:{last}:0:0:a247:27dd"),
        format!("2606:4700::5efe:{last}"),
        format!("2606:4700:0:0:200:5efe:{last}"),
    ]
}
