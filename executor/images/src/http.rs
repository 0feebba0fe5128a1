//! One HTTP request on a connection of its own, with bounds on its time and without implicit further requests.
//!
//! In goes an origin, a path and headers; out comes an answer whose body is read piece by piece. No redirect is followed,
//! no proxy is used, no cookie kept, nothing decompressed. Where the address of a host that somebody else named would be
//! of this machine or its surroundings, the connection is not made: the address is judged that is connected to, so that
//! no name can stand for one and lead to another.

mod reach;
mod tls;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use executor_core::shortage;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

pub(crate) use reach::Reach;

/// Maximum bytes of an answer's head, and of what is read ahead of its body.
const BUFFER_MAX: usize = 256 << 10;
/// Maximum number of headers of an answer.
const HEADERS_MAX: usize = 100;
/// Longest path with its query: signed addresses of blobs are long.
const PATH_MAX: usize = 16 << 10;

/// Scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) secure: bool,
    /// Host, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Origin {
    /// Parses `host[:port]` or `[address][:port]`.
    pub(crate) fn of(registry: &str, secure: bool) -> Self {
        let default = if secure { 443 } else { 80 };
        let colon = registry.rfind(':').filter(|at| !registry[*at..].contains(']'));
        let (host, port) = match colon {
            Some(at) => (&registry[..at], registry[at + 1..].parse().unwrap_or(default)),
            None => (registry, default),
        };
        Self { secure, host: host.trim_matches(['[', ']']).to_ascii_lowercase(), port }
    }

    /// Origin and path of an absolute address; the path alone of one that begins with a slash.
    pub(crate) fn parse(address: &str, base: &Self) -> Option<(Self, String)> {
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
        // A name or password in an address is nobody's we know.
        if authority.as_str().contains('@') {
            return None;
        }
        Some((Self::of(authority.as_str(), secure), if path.is_empty() { "/".to_owned() } else { path }))
    }

    pub(crate) fn authority(&self) -> String {
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

/// A request.
#[derive(Debug)]
pub(crate) struct HttpRequest<'a> {
    pub(crate) method: Method,
    pub(crate) origin: &'a Origin,
    pub(crate) path: &'a str,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: Vec<u8>,
    /// Reach of the server that named the host, if it was not the caller: such a host may be public, or as near as that
    /// server.
    pub(crate) named_by: Option<Reach>,
}

/// An answer.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) reach: Reach,
    pub(crate) body: Body,
}

/// Error of a request.
#[derive(Debug)]
pub(crate) enum HttpError {
    /// The host may not be reached; why.
    Forbidden(&'static str),
    /// Too slow: what came, and in which time.
    Slow { bytes: u64, within: Duration },
    /// The connection failed or broke.
    Broken(String),
    /// A secure connection cannot be established, now or later.
    Untrusted(String),
    /// The connection failed because this host is short of a resource.
    Exhausted(std::io::Error),
}

/// The connection, for as long as its answer is read.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Makes connections.
pub(crate) struct Client {
    tls: tls::Tls,
    patience: Duration,
    least: u64,
}

impl Client {
    pub(crate) fn new(ca_file: Option<PathBuf>, patience: Duration, least: u64) -> Self {
        Self { tls: tls::Tls::new(ca_file), patience, least }
    }

    /// Returns the minimum number of bytes in the waiting time.
    pub(crate) fn least(&self) -> u64 {
        self.least
    }

    /// Asks, and waits for the head of the answer.
    pub(crate) async fn ask(&self, ask: HttpRequest<'_>) -> Result<Answer, HttpError> {
        let slow = |_| HttpError::Slow { bytes: 0, within: self.patience };
        timeout(self.patience, self.connect_and_ask(ask)).await.map_err(slow)?
    }

    async fn connect_and_ask(&self, ask: HttpRequest<'_>) -> Result<Answer, HttpError> {
        let (stream, reach) = connect(ask.origin, ask.named_by).await?;
        let (connection, mut sender) = match ask.origin.secure {
            true => handshake(self.tls.connect(&ask.origin.host, stream).await?).await?,
            false => handshake(stream).await?,
        };
        let host = HeaderValue::from_str(&ask.origin.authority());
        let mut request = Request::builder()
            .method(ask.method)
            .uri(ask.path)
            .header(HOST, host.map_err(|_| HttpError::Broken("the host name is not valid in a Host header".into()))?)
            .header(USER_AGENT, concat!("executor/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(Bytes::from(ask.body)))
            .map_err(|error| HttpError::Broken(error.to_string()))?;
        request.headers_mut().extend(ask.headers.into_iter().map(|(name, value)| (Some(name), value)));
        let response = sender.send_request(request).await.map_err(|error| HttpError::Broken(told(&error)))?;
        let (head, incoming) = response.into_parts();
        let meter = Meter { patience: self.patience, least: self.least, waited: Duration::ZERO, bytes: 0 };
        let body = Body { incoming, meter, _connection: connection };
        Ok(Answer { status: head.status, headers: head.headers, reach, body })
    }
}

async fn connect(origin: &Origin, named_by: Option<Reach>) -> Result<(TcpStream, Reach), HttpError> {
    let addresses = tokio::net::lookup_host((&*origin.host, origin.port));
    let addresses =
        addresses.await.map_err(|error| HttpError::Broken(format!("cannot resolve the host name: {error}")))?;
    let mut last = HttpError::Broken("the host name resolves to no address".to_owned());
    for address in addresses {
        let reach = Reach::of(address.ip());
        if let Err(why) = named_by.map_or(Ok(()), |by| reach.may_be_named_by(by)) {
            last = HttpError::Forbidden(why);
            continue;
        }
        match TcpStream::connect(address).await {
            Ok(stream) => {
                let _ = stream.set_nodelay(true);
                return Ok((stream, reach));
            }
            Err(error) if shortage::of(&error).is_some() => return Err(HttpError::Exhausted(error)),
            Err(error) => last = HttpError::Broken(format!("cannot connect: {error}")),
        }
    }
    Err(last)
}

async fn handshake<S>(stream: S) -> Result<(Connection, http1::SendRequest<Full<Bytes>>), HttpError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http1::Builder::new();
    builder.max_buf_size(BUFFER_MAX).max_headers(HEADERS_MAX);
    let (sender, connection) =
        builder.handshake(TokioIo::new(stream)).await.map_err(|error| HttpError::Broken(told(&error)))?;
    // How it ends is told by what is read of it.
    let connection = tokio::spawn(async move { drop(connection.await) });
    Ok((Connection(connection), sender))
}

/// An error of hyper's with its causes, which its own words leave out.
fn told(error: &hyper::Error) -> String {
    use std::error::Error as _;
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

/// The rest of an answer.
pub(crate) struct Body {
    incoming: Incoming,
    meter: Meter,
    _connection: Connection,
}

/// Counts what comes in the time that is spent with waiting, so that a slow disk of ours is not held against a registry.
struct Meter {
    patience: Duration,
    least: u64,
    waited: Duration,
    bytes: u64,
}

/// Error of reading a body.
#[derive(Debug)]
pub(crate) enum BodyError {
    /// Too slow: what came, and in which time.
    Slow { bytes: u64, within: Duration },
    /// The connection ended before the body did.
    Ended,
}

impl Body {
    /// The next piece; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
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
    fn addresses_are_taken_apart() {
        let base = Origin::of("r.example:5000", true);
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
