//! Addresses of executord: a unix socket on this machine, or TCP with mutual TLS.

use std::fmt;
use std::path::{Path, PathBuf};

/// Address of an executord.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerAddress {
    /// A unix socket.
    Socket(PathBuf),
    /// `HOST:PORT`, reached over TCP with mutual TLS.
    Tcp(String),
}

impl ServerAddress {
    /// Returns the path of the unix socket; `None` for a TCP address.
    pub fn socket(&self) -> Option<&Path> {
        match self {
            Self::Socket(path) => Some(path),
            Self::Tcp(_) => None,
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Tcp(address) => f.write_str(address),
        }
    }
}

/// Credential files of a client over TCP. The files are read for each connection, so new certificates are used without
/// a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The client's certificate with its chain (PEM).
    pub certificate: PathBuf,
    /// The client's private key (PEM).
    pub key: PathBuf,
    /// CA certificates that sign executord's certificate (PEM). The system's CA certificates are not trusted.
    pub ca: PathBuf,
    /// Expected name in executord's certificate; the host of the address if `None`.
    pub server_name: Option<String>,
}

/// Splits `HOST:PORT`; an IPv6 address is in brackets.
pub(crate) fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    let host = match host.strip_prefix('[') {
        Some(host) => host.strip_suffix(']').filter(|host| host.parse::<std::net::Ipv6Addr>().is_ok())?,
        None => host,
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let named = !host.is_empty() && host.len() <= 253 && host.bytes().all(plain);
    (named || host.parse::<std::net::Ipv6Addr>().is_ok() && address.starts_with('[')).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports() {
        assert_eq!(host_and_port("node-1.example:7443"), Some(("node-1.example", 7443)));
        assert_eq!(host_and_port("10.0.0.5:1"), Some(("10.0.0.5", 1)));
        assert_eq!(host_and_port("[fd00::1]:7443"), Some(("fd00::1", 7443)));
        for bad in
            ["", "host", "host:", ":1", "host:0", "host:65536", "fd00::1:7443", "[host]:1", "a/b:1", "https://a:1"]
        {
            assert_eq!(host_and_port(bad), None, "{bad}");
        }
    }
}
