//! Sends one HTTP request per connection, with time limits. Sends no request that the caller did not make.
//!
//! Input: an origin, a path and headers; output: a response whose body is read piece by piece. Redirects are not
//! followed, a proxy is used only if the client has one, cookies are not stored, nothing is decompressed. A host that a
//! server named is contacted only if the host's address is public or has the same reach as the server's address (see
//! [`Destinations`]). The check applies to the address of the connection, so a name cannot resolve to one address for
//! the check and to another for the connection.

#![forbid(unsafe_code)]

mod body;
mod destinations;
mod forms;
mod proxy;
mod reach;
mod tls;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use executor_core::shortage;
use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHORIZATION, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

pub use body::{BytesSent, RequestBody};
pub use destinations::{AddressLists, Destinations};
pub use proxy::Proxy;
pub use reach::Reach;
pub use tls::{ClientCertificate, Trust, count_certificates};

/// Maximum size of a response head, and of the read-ahead of the body, in bytes.
const BUFFER_MAX: usize = 256 << 10;
/// Maximum number of headers of a response.
const HEADERS_MAX: usize = 100;
/// Maximum length of a path with query, in bytes: signed URLs of blobs are long.
const PATH_MAX: usize = 16 << 10;

/// Scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// True if the scheme is https.
    pub secure: bool,
    /// Host name or address, without brackets.
    pub host: String,
    pub port: u16,
}

impl Origin {
    /// Parses `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`. Without a valid port, uses 443 if `secure` is true,
    /// otherwise 80.
    pub fn new(registry: &str, secure: bool) -> Self {
        let default = if secure { 443 } else { 80 };
        let colon = registry.rfind(':').filter(|at| !registry[*at..].contains(']'));
        let (host, port) = match colon {
            Some(at) => (&registry[..at], registry[at + 1..].parse().unwrap_or(default)),
            None => (registry, default),
        };
        Self { secure, host: host.trim_matches(['[', ']']).to_ascii_lowercase(), port }
    }

    /// Parses an absolute URL into origin and path, or a path that begins with a slash, relative to `base`.
    pub fn parse(address: &str, base: &Self) -> Option<(Self, String)> {
        if address.len() > PATH_MAX {
            return None;
        }
        let uri: Uri = address.parse().ok()?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let Some(authority) = uri.authority() else {
            return (address.starts_with('/') && !address.starts_with("//")).then(|| (base.clone(), path));
        };
        let secure = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        // Credentials in a URL are not supported.
        if authority.as_str().contains('@') {
            return None;
        }
        Some((Self::new(authority.as_str(), secure), if path.is_empty() { "/".to_owned() } else { path }))
    }

    /// Returns true if the host is a name of this machine's loopback (RFC 6761, section 6.3).
    pub(crate) fn is_localhost(&self) -> bool {
        self.host == "localhost" || self.host.ends_with(".localhost")
    }

    /// Checks that a connection to this address of the host is allowed. `localhost` must resolve to a loopback address,
    /// because connections to `localhost` may be unencrypted and a name server must not redirect them.
    ///
    /// # Errors
    /// Returns the reason if the address is not allowed.
    fn admit(&self, address: IpAddr, destinations: Destinations<'_>) -> Result<(), &'static str> {
        if self.is_localhost() && Reach::from_address(address) != Reach::Loopback {
            return Err("the host name is localhost, but the address is not a loopback address");
        }
        destinations.admit(address)
    }

    /// Returns the host and port, without the port if it is the scheme's default.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.secure, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.secure { "https" } else { "http" }, self.authority())
    }
}

#[derive(Debug)]
pub struct HttpRequest<'a> {
    pub method: Method,
    pub origin: &'a Origin,
    /// Path and query.
    pub path: &'a str,
    /// Headers in addition to `Host` and `User-Agent`.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub body: RequestBody,
    /// Rule for the server's addresses.
    pub destinations: Destinations<'a>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// Reach of the server's address.
    pub reach: Reach,
    /// Unread body of the response.
    pub body: Body,
}

#[derive(Debug)]
pub enum HttpError {
    /// The host must not be contacted; holds the reason.
    Forbidden(&'static str),
    /// Too few bytes arrived in time.
    Slow {
        /// Number of bytes that were received within `within`.
        bytes: u64,
        /// Period in which `bytes` were received.
        within: Duration,
    },
    Broken(String),
    /// A secure connection cannot be established, and a retry will not help.
    Untrusted(String),
    /// The connection failed because a resource of this host is exhausted.
    Exhausted(std::io::Error),
}

/// Task that drives the connection; aborted on drop.
#[derive(Debug)]
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug)]
pub struct Client {
    tls: tls::Tls,
    proxy: Option<Proxy>,
    patience: Duration,
    least: u64,
}

/// An established connection, ready for one request.
struct Link {
    connection: Connection,
    sender: http1::SendRequest<RequestBody>,
    reach: Reach,
    /// Set if a proxy forwards the request.
    forwarded: Option<Forwarded>,
}

/// Marks a request that a proxy forwards.
struct Forwarded {
    /// Credentials for the proxy.
    authorization: Option<HeaderValue>,
}

impl Client {
    /// Creates a client that trusts the system's certificates and the certificates of a file, and requires that at
    /// least `least` bytes arrive in every period of length `patience`.
    pub fn new(ca_file: Option<PathBuf>, patience: Duration, least: u64) -> Self {
        Self::trusting(Trust::System(ca_file), patience, least)
    }

    /// Creates a client that trusts the authorities in `trust`, and requires that at least `least` bytes arrive in
    /// every period of length `patience`.
    pub fn trusting(trust: Trust, patience: Duration, least: u64) -> Self {
        Self { tls: tls::Tls::new(trust, None), proxy: None, patience, least }
    }

    /// Creates a client like [`Self::new`], with a client certificate for servers that request one.
    pub fn with_certificate(ca_file: Option<PathBuf>, own: ClientCertificate, patience: Duration, least: u64) -> Self {
        Self { tls: tls::Tls::new(Trust::System(ca_file), Some(own)), proxy: None, patience, least }
    }

    #[must_use]
    pub fn with_proxy(self, proxy: Option<Proxy>) -> Self {
        Self { proxy, ..self }
    }

    /// Returns the minimum number of bytes that must arrive in every period of the client's `patience`.
    pub fn least(&self) -> u64 {
        self.least
    }

    /// Sends a request and waits for the head of the response.
    ///
    /// # Errors
    /// Returns an [`HttpError`] if the request fails.
    pub async fn ask(&self, ask: HttpRequest<'_>) -> Result<Answer, HttpError> {
        let slow = |_| HttpError::Slow { bytes: 0, within: self.patience };
        timeout(self.patience, self.connect_and_ask(ask)).await.map_err(slow)?
    }

    async fn connect_and_ask(&self, ask: HttpRequest<'_>) -> Result<Answer, HttpError> {
        let mut link = self.connect(&ask).await?;
        let request = request(ask, link.forwarded.take())?;
        let response = link.sender.send_request(request).await.map_err(|error| HttpError::Broken(reported(&error)))?;
        Ok(self.answer(response, link.connection, link.reach))
    }

    /// Sends a request with a large body and waits for the head of the response. Fails with [`HttpError::Slow`] if, for
    /// the client's `patience`, the connection accepts no byte of the body and the response does not begin.
    ///
    /// # Errors
    /// Returns an [`HttpError`] if the request fails.
    pub async fn send(&self, ask: HttpRequest<'_>, taken: &BytesSent) -> Result<Answer, HttpError> {
        let slow = |_| HttpError::Slow { bytes: 0, within: self.patience };
        let mut link = timeout(self.patience, self.connect(&ask)).await.map_err(slow)??;
        let sent = link.sender.send_request(request(ask, link.forwarded.take())?);
        let mut sent = std::pin::pin!(sent);
        let response = loop {
            let before = taken.bytes();
            match timeout(self.patience, &mut sent).await {
                Ok(response) => break response.map_err(|error| HttpError::Broken(reported(&error)))?,
                Err(_) if taken.bytes() > before => {}
                Err(_) => return Err(HttpError::Slow { bytes: 0, within: self.patience }),
            }
        };
        Ok(self.answer(response, link.connection, link.reach))
    }

    async fn connect(&self, ask: &HttpRequest<'_>) -> Result<Link, HttpError> {
        let mut forwarded = None;
        let (stream, reach) = match self.proxy.as_ref().filter(|proxy| proxy.is_for(ask.origin)) {
            None => connect(ask.origin, ask.destinations).await?,
            Some(proxy) => {
                let proxied = proxy.connect(ask.origin, ask.destinations).await?;
                forwarded = (!ask.origin.secure).then_some(Forwarded { authorization: proxied.authorization });
                // The proxy resolves the name, so the address is unknown here: hosts that the server names must be
                // public.
                (proxied.stream, Reach::Public)
            }
        };
        let (connection, sender) = match ask.origin.secure {
            true => handshake(self.tls.connect(&ask.origin.host, stream).await?).await?,
            false => handshake(stream).await?,
        };
        Ok(Link { connection, sender, reach, forwarded })
    }

    fn answer(&self, response: Response<Incoming>, connection: Connection, reach: Reach) -> Answer {
        let (head, incoming) = response.into_parts();
        let meter = Meter { patience: self.patience, least: self.least, waited: Duration::ZERO, bytes: 0 };
        let body = Body { incoming, meter, _connection: connection };
        Answer { status: head.status, headers: head.headers, reach, body }
    }
}

/// Builds a request, in absolute form if a proxy forwards it.
fn request(ask: HttpRequest<'_>, forwarded: Option<Forwarded>) -> Result<Request<RequestBody>, HttpError> {
    let target = if forwarded.is_some() { format!("{}{}", ask.origin, ask.path) } else { ask.path.to_owned() };
    let why = "the host name contains characters that an HTTP header cannot carry";
    let host = HeaderValue::from_str(&ask.origin.authority()).map_err(|_| HttpError::Broken(why.into()))?;
    let mut request = Request::builder()
        .method(ask.method)
        .uri(target)
        .header(HOST, host)
        .header(USER_AGENT, concat!("executor/", env!("CARGO_PKG_VERSION")))
        .body(ask.body)
        .map_err(|error| HttpError::Broken(error.to_string()))?;
    let authorization =
        forwarded.and_then(|forwarded| forwarded.authorization).map(|value| (PROXY_AUTHORIZATION, value));
    request.headers_mut().extend(ask.headers.into_iter().chain(authorization).map(|(name, value)| (Some(name), value)));
    Ok(request)
}

async fn connect(origin: &Origin, destinations: Destinations<'_>) -> Result<(TcpStream, Reach), HttpError> {
    let addresses = tokio::net::lookup_host((&*origin.host, origin.port));
    let addresses =
        addresses.await.map_err(|error| HttpError::Broken(format!("cannot resolve the host name: {error}")))?;
    let mut last = HttpError::Broken("the host name resolves to no address".to_owned());
    for address in addresses {
        let reach = Reach::from_address(address.ip());
        if let Err(why) = origin.admit(address.ip(), destinations) {
            last = HttpError::Forbidden(why);
            continue;
        }
        match TcpStream::connect(address).await {
            Ok(stream) => {
                let _ = stream.set_nodelay(true);
                return Ok((stream, reach));
            }
            Err(error) if shortage::find(&error).is_some() => return Err(HttpError::Exhausted(error)),
            Err(error) => last = HttpError::Broken(format!("cannot connect: {error}")),
        }
    }
    Err(last)
}

async fn handshake<S>(stream: S) -> Result<(Connection, http1::SendRequest<RequestBody>), HttpError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http1::Builder::new();
    builder.max_buf_size(BUFFER_MAX).max_headers(HEADERS_MAX);
    let (sender, connection) =
        builder.handshake(TokioIo::new(stream)).await.map_err(|error| HttpError::Broken(reported(&error)))?;
    // Errors of the connection are reported through its response.
    let connection = tokio::spawn(async move { drop(connection.await) });
    Ok((Connection(connection), sender))
}

/// Formats a hyper error with its causes, which its `Display` omits.
fn reported(error: &hyper::Error) -> String {
    use std::error::Error as _;
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

/// The unread body of a response.
#[derive(Debug)]
pub struct Body {
    incoming: Incoming,
    meter: Meter,
    _connection: Connection,
}

/// Measures the receive rate over time spent waiting, so that a slow local disk does not count against the server.
#[derive(Debug)]
struct Meter {
    patience: Duration,
    least: u64,
    waited: Duration,
    bytes: u64,
}

#[derive(Debug)]
pub enum BodyError {
    /// Too few bytes arrived in time.
    Slow {
        /// Number of bytes that were received within `within`.
        bytes: u64,
        /// Period in which `bytes` were received.
        within: Duration,
    },
    /// The connection was closed before the end of the body.
    Ended,
}

impl Body {
    /// Returns the next piece; `None` at the end of the body.
    ///
    /// # Errors
    /// Returns a [`BodyError`] if the body cannot be read.
    pub async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        loop {
            let begun = Instant::now();
            let frame = timeout(self.meter.patience.saturating_sub(self.meter.waited), self.incoming.frame()).await;
            self.meter.waited += begun.elapsed();
            let late = frame.is_err();
            let data = match frame {
                Ok(None) => return Ok(None),
                Ok(Some(Err(_))) => return Err(BodyError::Ended),
                Ok(Some(Ok(frame))) => frame.into_data().ok(),
                Err(_) => None,
            };
            self.meter.bytes += data.as_ref().map_or(0, |data| data.len() as u64);
            if late || self.meter.waited >= self.meter.patience {
                if self.meter.bytes < self.meter.least {
                    return Err(BodyError::Slow { bytes: self.meter.bytes, within: self.meter.waited });
                }
                (self.meter.waited, self.meter.bytes) = (Duration::ZERO, 0);
            }
            if let Some(data) = data.filter(|data| !data.is_empty()) {
                return Ok(Some(data));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_has_loopback_addresses_only() {
        let table = [
            ("localhost", "127.0.0.1", true),
            ("registry.localhost:5000", "::1", true),
            ("localhost", "192.0.2.7", false),
            ("a.localhost", "10.1.2.3", false),
            ("localhost", "169.254.169.254", false),
            ("localhost.example", "192.0.2.7", true),
            ("notlocalhost", "192.0.2.7", true),
        ];
        for (host, address, admitted) in table {
            let result = Origin::new(host, false).admit(address.parse().unwrap(), Destinations::Any);
            assert_eq!(result.is_ok(), admitted, "{host} at {address}");
        }
    }

    #[test]
    fn url_is_split_into_origin_and_path() {
        let base = Origin::new("r.example:5000", true);
        let parse = |address: &str| Origin::parse(address, &base).map(|(origin, path)| format!("{origin} {path}"));
        let table = [
            ("https://cdn.example/a?b=c", Some("https://cdn.example /a?b=c")),
            ("http://CDN.example:81/a", Some("http://cdn.example:81 /a")),
            ("https://[::1]:5000/a", Some("https://[::1]:5000 /a")),
            ("https://cdn.example", Some("https://cdn.example /")),
            ("/v2/x", Some("https://r.example:5000 /v2/x")),
            ("//cdn.example/x", None),
            ("x/y", None),
            ("ftp://cdn.example/x", None),
            ("file:///etc/passwd", None),
            ("https://user:pw@cdn.example/x", None),
            ("", None),
        ];
        for (address, expected) in table {
            assert_eq!(parse(address).as_deref(), expected, "{address}");
        }
        assert_eq!(parse(&format!("/{}", "a".repeat(PATH_MAX))), None);
    }
}
