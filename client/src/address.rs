//! Addresses of executord: a socket of this machine, or TCP with mutual TLS.

use std::fmt;
use std::path::{Path, PathBuf};

/// Address of an executord.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerAddress {
    /// A unix socket.
    Socket(PathBuf),
    /// Host and port.
    Tcp(String),
}

impl ServerAddress {
    /// The path, where it is a unix socket.
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

/// Files of a caller over TCP. They are read at each connection, so that new certificates are used without a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The caller's certificate with its chain (PEM).
    pub certificate: PathBuf,
    /// Its private key (PEM).
    pub key: PathBuf,
    /// Certificates that sign executord's (PEM). The system's are not trusted.
    pub ca: PathBuf,
    /// Name in executord's certificate; the host of the address where there is none.
    pub server_name: Option<String>,
}

/// Host and port of `HOST:PORT`; an IPv6 address stands in brackets.
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
