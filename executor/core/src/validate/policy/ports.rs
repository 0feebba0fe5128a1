//! Parses and applies the operator's rules for host ports that containers may publish.
//!
//! A rule is `[ADDRESS[/PREFIX]:]FIRST[-LAST][/PROTOCOL]`: `8000-8999`, `127.0.0.1:1024-65535`, `[fd00::]/8:443/tcp`. A
//! rule without an address allows every host address. A port that is published on all host addresses is allowed only by
//! a rule without an address.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::plan::{Protocol, PublishedPort};

/// A range of ports that may be published, with host addresses and protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortRule {
    /// An address with its prefix length; every address if unset.
    address: Option<(IpAddr, u8)>,
    first: u16,
    last: u16,
    /// Protocol; every protocol if unset.
    protocol: Option<Protocol>,
}

/// An invalid rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{rule:?} is not a rule for ports: {why}; write [ADDRESS[/PREFIX]:]FIRST[-LAST][/tcp|udp|sctp], such as 8000-8999"
)]
pub struct BadPortRule {
    rule: String,
    why: String,
}

impl PortRule {
    /// Creates the rule for these ports on every address and for every protocol.
    pub(super) const fn from_every_address(first: u16, last: u16) -> Self {
        Self { address: None, first, last, protocol: None }
    }

    /// Returns true if this rule allows a published port.
    pub(in crate::validate) fn allows(&self, port: &PublishedPort) -> bool {
        let address = match (self.address, port.host_ip) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some((network, bits)), Some(ip)) => is_within(ip, network, bits),
        };
        address
            && (self.first..=self.last).contains(&port.host_port)
            && self.protocol.is_none_or(|protocol| protocol == port.protocol)
    }
}

/// Compares the first bits of two addresses of the same family.
fn is_within(ip: IpAddr, network: IpAddr, bits: u8) -> bool {
    let (ip, network, width) = match (ip, network) {
        (IpAddr::V4(ip), IpAddr::V4(network)) => (u128::from(ip.to_bits()), u128::from(network.to_bits()), 32),
        (IpAddr::V6(ip), IpAddr::V6(network)) => (ip.to_bits(), network.to_bits(), 128),
        _ => return false,
    };
    // `checked_shr` returns `None` for a shift by the whole width.
    (ip ^ network).checked_shr(width - u32::from(bits)).unwrap_or(0) == 0
}

impl FromStr for PortRule {
    type Err = BadPortRule;

    fn from_str(rule: &str) -> Result<Self, BadPortRule> {
        let bad = |why: String| BadPortRule { rule: rule.into(), why };
        let (rest, protocol) = match rule.rsplit_once('/') {
            Some((rest, name)) if name.bytes().all(|byte| byte.is_ascii_alphabetic()) && !name.is_empty() => {
                let known = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|one| one.name() == name);
                (rest, Some(known.ok_or_else(|| bad(format!("unknown protocol {name:?}")))?))
            }
            _ => (rule, None),
        };
        let (address, ports) = match rest.rsplit_once(':') {
            Some((address, ports)) => (Some(network(address).map_err(bad)?), ports),
            None => (None, rest),
        };
        let number = |text: &str| match text.parse::<u16>() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(bad(format!("{text:?} is not a port from 1 to 65535"))),
        };
        let (first, last) = match ports.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(ports)?, number(ports)?),
        };
        if first > last {
            return Err(bad(format!("{first} is greater than {last}")));
        }
        Ok(Self { address, first, last, protocol })
    }
}

/// Parses `ADDRESS[/PREFIX]`; an IPv6 address is in brackets.
fn network(text: &str) -> Result<(IpAddr, u8), String> {
    let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let plain = address.strip_prefix('[').and_then(|address| address.strip_suffix(']'));
    let ip = match (plain, address.parse::<IpAddr>()) {
        (Some(plain), _) => plain.parse::<std::net::Ipv6Addr>().ok().map(IpAddr::V6),
        (None, Ok(IpAddr::V4(ip))) => Some(IpAddr::V4(ip)),
        (None, _) => None,
    };
    let ip = ip.ok_or_else(|| format!("{address:?} is not an IP address (an IPv6 address needs brackets)"))?;
    let width = if ip.is_ipv4() { 32 } else { 128 };
    let bits = match prefix {
        None => width,
        Some(prefix) => prefix
            .parse()
            .ok()
            .filter(|bits| *bits <= width)
            .ok_or_else(|| format!("/{prefix} is not a prefix from 0 to {width}"))?,
    };
    Ok((ip, bits))
}

impl fmt::Display for PortRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some((IpAddr::V4(ip), bits)) => write!(f, "{ip}/{bits}:")?,
            Some((IpAddr::V6(ip), bits)) => write!(f, "[{ip}]/{bits}:")?,
            None => {}
        }
        write!(f, "{}-{}", self.first, self.last)?;
        self.protocol.map_or(Ok(()), |protocol| write!(f, "/{}", protocol.name()))
    }
}

impl TryFrom<String> for PortRule {
    type Error = BadPortRule;

    fn try_from(rule: String) -> Result<Self, BadPortRule> {
        rule.parse()
    }
}

impl From<PortRule> for String {
    fn from(rule: PortRule) -> Self {
        rule.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> PortRule {
        text.parse().unwrap()
    }

    fn port(ip: &str, host_port: u16, protocol: Protocol) -> PublishedPort {
        PublishedPort { host_ip: ip.parse().ok(), host_port, container_port: 80, protocol }
    }

    #[test]
    fn rules_allow_what_they_name() {
        let cases = [
            ("8000-8999", "", 8000, true),
            ("8000-8999", "10.0.0.1", 8999, true),
            ("8000-8999", "::1", 9000, false),
            ("8080", "", 8081, false),
            ("8080/udp", "", 8080, false),
            ("8080/tcp", "", 8080, true),
            ("127.0.0.1:1024-65535", "127.0.0.1", 1024, true),
            ("127.0.0.1:1024-65535", "127.0.0.2", 1024, false),
            ("127.0.0.1:1024-65535", "", 1024, false),
            ("10.0.0.0/8:80", "10.255.0.1", 80, true),
            ("10.0.0.0/8:80", "11.0.0.1", 80, false),
            ("0.0.0.0/0:80", "192.0.2.1", 80, true),
            ("0.0.0.0/0:80", "::1", 80, false),
            ("[::1]:443", "::1", 443, true),
            ("[fd00::]/8:1-65535/tcp", "fdff::1", 65535, true),
            ("[fd00::]/8:1-65535/tcp", "fe80::1", 65535, false),
        ];
        for (text, ip, number, allowed) in cases {
            assert_eq!(rule(text).allows(&port(ip, number, Protocol::Tcp)), allowed, "{text} {ip} {number}");
            assert_eq!(rule(&rule(text).to_string()), rule(text), "{text} is printed as it is parsed");
        }
    }

    #[test]
    fn bad_rules_are_reported() {
        for (text, why) in [
            ("", "\"\" is not a port"),
            ("0", "\"0\" is not a port"),
            ("65536", "\"65536\" is not a port"),
            ("9-8", "9 is greater than 8"),
            ("80/icmp", "unknown protocol \"icmp\""),
            ("localhost:80", "\"localhost\" is not an IP address"),
            ("::1:80", "\"::1\" is not an IP address (an IPv6"),
            ("10.0.0.0/33:80", "/33 is not a prefix from 0 to 32"),
            ("80-", "\"\" is not a port"),
        ] {
            let error = text.parse::<PortRule>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
