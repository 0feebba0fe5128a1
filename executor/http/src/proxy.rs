//! Connections through an HTTP proxy: CONNECT for https, requests in absolute form for http (RFC 9110, 9.3.6; RFC 9112,
//! 3.2.2).
//!
//! The proxy resolves host names, so only hosts given as addresses are checked here. This machine's own names and
//! addresses are always contacted directly.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use executor_core::shortage;
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use tokio::net::TcpStream;
use tower_service::Service as _;
use zeroize::Zeroizing;

use crate::{Destinations, HttpError, Origin};

/// Maximum size of a credentials file, in bytes.
const CREDENTIALS_MAX: u64 = 4096;

/// An HTTP proxy, and the hosts that are contacted without it.
#[derive(Clone, Debug)]
pub struct Proxy {
    address: Uri,
    matcher: Arc<Matcher>,
    credentials_file: Option<PathBuf>,
}

/// A connection to a proxy, or through it.
pub(crate) struct Proxied {
    pub(crate) stream: TcpStream,
    /// Header for forwarded http requests.
    pub(crate) authorization: Option<HeaderValue>,
}

impl Proxy {
    /// Creates a proxy from `http://HOST[:PORT]`, a file with `USER:PASSWORD` that is read for each connection, and
    /// hosts that are contacted directly: names including all subdomains, addresses, networks, or `*`.
    ///
    /// # Errors
    /// Returns the reason if the address is invalid. The reason repeats no part of the address, because the address may
    /// contain a password.
    pub fn new(address: &str, credentials_file: Option<PathBuf>, direct: &[String]) -> Result<Self, &'static str> {
        let uri: Uri = address.parse().map_err(|_| "must be http://HOST[:PORT]")?;
        let authority = uri.authority().ok_or("must be http://HOST[:PORT]")?;
        match () {
            () if authority.as_str().contains('@') => Err("must have no user name: use images.proxy_credentials_file"),
            () if uri.scheme_str() != Some("http") => Err("must begin with http://: other proxies are not supported"),
            () if uri.path_and_query().is_some_and(|path| path.as_str() != "/") => Err("must have no path"),
            () => Ok(Self {
                matcher: Arc::new(Matcher::builder().all(address).no(direct.join(",")).build()),
                address: uri,
                credentials_file,
            }),
        }
    }

    /// Returns true if connections to a host use the proxy.
    pub(crate) fn is_for(&self, origin: &Origin) -> bool {
        let own = match origin.host.parse::<IpAddr>() {
            Ok(address) => address.is_loopback() || address.is_unspecified(),
            Err(_) => origin.is_localhost(),
        };
        !own && origin.to_string().parse().is_ok_and(|uri| self.matcher.intercept(&uri).is_some())
    }

    /// Connects to the proxy and, for https, through it to the host.
    ///
    /// # Errors
    /// Returns an error if the host is a forbidden address, or if the proxy cannot be reached or refuses the
    /// connection.
    pub(crate) async fn connect(&self, origin: &Origin, to: Destinations<'_>) -> Result<Proxied, HttpError> {
        if let Ok(address) = origin.host.parse() {
            to.admit(address).map_err(HttpError::Forbidden)?;
        }
        let authorization = self.authorization().await?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let stream = if origin.secure {
            let mut tunnel = Tunnel::new(self.address.clone(), connector);
            if let Some(header) = authorization.clone() {
                tunnel = tunnel.with_auth(header);
            }
            let host: Uri =
                format!("{origin}/").parse().map_err(|_| HttpError::Broken("the host is not valid".into()))?;
            tunnel.call(host).await.map_err(|error| self.failed(&error))?
        } else {
            connector.call(self.address.clone()).await.map_err(|error| self.failed(&error))?
        };
        Ok(Proxied { stream: stream.into_inner(), authorization })
    }

    async fn authorization(&self) -> Result<Option<HeaderValue>, HttpError> {
        let Some(path) = self.credentials_file.clone() else { return Ok(None) };
        let shown = path.display().to_string();
        let broken = |why: String| HttpError::Broken(format!("the proxy's credentials in {shown}: {why}"));
        let read = tokio::task::spawn_blocking(move || {
            let mut text = Zeroizing::new(String::with_capacity(CREDENTIALS_MAX as usize + 1));
            let file = std::fs::File::open(&path)?;
            std::io::Read::read_to_string(&mut std::io::Read::take(file, CREDENTIALS_MAX + 1), &mut text)?;
            Ok::<_, std::io::Error>(text)
        });
        let text = read.await.map_err(|error| broken(error.to_string()))?.map_err(|error| broken(error.to_string()))?;
        let pair = text.trim_end_matches(['\n', '\r']);
        if text.len() as u64 > CREDENTIALS_MAX || !pair.contains(':') {
            return Err(broken(format!("must be USER:PASSWORD, of at most {CREDENTIALS_MAX} bytes")));
        }
        let header = Zeroizing::new(format!("Basic {}", *Zeroizing::new(STANDARD.encode(pair))));
        let mut header = HeaderValue::from_str(&header).map_err(|error| broken(error.to_string()))?;
        header.set_sensitive(true);
        Ok(Some(header))
    }

    fn failed(&self, error: &(dyn std::error::Error + 'static)) -> HttpError {
        let mut why = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            if let Some(io) = error.downcast_ref::<std::io::Error>()
                && shortage::find(io).is_some()
            {
                let errno = io.raw_os_error().map_or_else(|| io.kind().into(), std::io::Error::from_raw_os_error);
                return HttpError::Exhausted(errno);
            }
            why = format!("{why}: {error}");
            cause = error.source();
        }
        HttpError::Broken(format!("proxy {}: {why}", self.address.authority().map_or("", |one| one.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_of_a_proxy_is_checked() {
        let made = |address: &str| Proxy::new(address, None, &[]).map(drop);
        assert_eq!(made("http://proxy.example:3128"), Ok(()));
        assert_eq!(made("http://[fd00::1]:3128/"), Ok(()));
        for bad in
            ["proxy.example:3128", "https://p.example", "socks5://p.example", "http://p.example/x", "", "http://"]
        {
            assert!(made(bad).is_err(), "{bad}");
        }
        let reported = made("http://user:canary-9d@p.example").unwrap_err();
        assert!(reported.contains("proxy_credentials_file") && !reported.contains("canary"), "{reported}");
    }

    #[test]
    fn direct_hosts_use_no_proxy() {
        let direct = ["corp.example", "10.0.0.0/8", "fd00::/8"].map(str::to_owned);
        let proxy = Proxy::new("http://proxy.example:3128", None, &direct).unwrap();
        let table = [
            ("https://registry.example", true),
            ("http://registry.example:5000", true),
            ("https://r.corp.example", false),
            ("https://corp.example:5000", false),
            ("https://notcorp.example", true),
            ("https://10.1.2.3", false),
            ("https://11.1.2.3", true),
            ("https://[fd00::5]:5000", false),
            ("https://localhost:5000", false),
            ("http://127.0.0.9", false),
            ("http://[::1]:5000", false),
        ];
        let base = Origin::new("x", true);
        for (address, proxied) in table {
            let (origin, _) = Origin::parse(address, &base).unwrap();
            assert_eq!(proxy.is_for(&origin), proxied, "{address}");
        }
        assert!(!Proxy::new("http://p", None, &["*".into()]).unwrap().is_for(&Origin::new("a.example", true)));
    }
}
