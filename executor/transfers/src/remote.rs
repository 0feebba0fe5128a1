//! Parses URLs, and describes errors of their servers.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use executor_core::validate::check_url;
use executor_http::{AddressLists, Client, HttpError, Origin};
use executor_sys::memfile::MemFile;
use hyper::StatusCode;
use hyper::header::HeaderValue;
use zeroize::Zeroizing;

use crate::job::{Failure, Rules};

pub(crate) struct Url {
    /// Scheme, host and port.
    pub(crate) origin: Origin,
    /// Path and query.
    pub(crate) path: Zeroizing<String>,
    /// `Authorization` header for the user name and password in the URL.
    pub(crate) authorization: Option<HeaderValue>,
}

impl Url {
    /// Reads a URL from a memory file, then wipes the file.
    pub(crate) fn read(file: &MemFile) -> Result<Self, Failure> {
        let failed =
            |error: std::io::Error| Failure::last(format!("cannot read or wipe the memory file with the URL: {error}"));
        let text = file.read(|bytes| Zeroizing::new(String::from_utf8_lossy(bytes).into_owned())).map_err(failed)?;
        file.wipe().map_err(failed)?;
        Self::parse(&text)
    }

    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let bad = || Failure::last("the URL is not valid");
        check_url(text).map_err(|why| Failure::last(format!("the URL {why}")))?;
        let (scheme, rest) = text.split_once("://").ok_or_else(bad)?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
        let slash = if path.starts_with('/') { "" } else { "/" };
        let bare = Zeroizing::new(format!("{}://{host}{slash}{path}", scheme.to_ascii_lowercase()));
        let (origin, path) = Origin::parse(&bare, &Origin::new(host, false)).ok_or_else(bad)?;
        let authorization = user.map(basic).transpose()?;
        Ok(Self { origin, path: Zeroizing::new(path), authorization })
    }

    /// Returns the digest of the URL's scheme, host, port and path, without the query.
    pub(crate) fn place(&self) -> String {
        let path = self.path.split('?').next().unwrap_or_default();
        crate::key_digest(&Zeroizing::new(format!("{}{path}", self.origin)))
    }
}

/// Returns the Basic authorization (RFC 7617) for the `name:password` of a URL.
fn basic(user: &str) -> Result<HeaderValue, Failure> {
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    let mut plain = Zeroizing::new(decoded(name));
    plain.push(b':');
    plain.extend_from_slice(&Zeroizing::new(decoded(password)));
    let value = Zeroizing::new(format!("Basic {}", STANDARD.encode(&*plain)));
    let mut value = HeaderValue::from_str(&value).map_err(|_| Failure::last("the URL's password is not valid"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Decodes percent-encoding (`%41`).
fn decoded(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let escaped = bytes.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        match escaped.and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    out
}

pub(crate) fn client(rules: &Rules) -> Client {
    // A minimum of one byte is enough, because executord limits the time of the whole transfer.
    Client::new(rules.ca_file.clone(), rules.idle, 1)
}

pub(crate) fn lists(rules: &Rules) -> AddressLists {
    AddressLists { denied: rules.denied.clone(), allowed: rules.allowed.clone() }
}

/// Runs the asynchronous part of a job.
pub(crate) fn run<T>(job: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(2).build();
    runtime.map_err(|error| Failure::last(format!("cannot start the runtime: {error}")))?.block_on(job)
}

/// Describes why a request could not be sent or got no response.
pub(crate) fn reported(origin: &Origin, error: HttpError) -> Failure {
    match error {
        HttpError::Forbidden(why) => Failure::last(format!("access to {origin} is not allowed: {why}")),
        HttpError::Slow { within, .. } => {
            Failure::transient(format!("no response from {origin} within {} s", within.as_secs_f32().ceil()))
        }
        HttpError::Broken(why) => Failure::transient(format!("{origin}: {}", plain(&why))),
        HttpError::Untrusted(why) => Failure::last(format!("{origin}: {why}")),
        HttpError::Exhausted(error) => Failure::transient(format!("{origin}: {}", plain(&error.to_string()))),
    }
}

/// Creates the failure for a status other than success.
pub(crate) fn refused(origin: &Origin, status: StatusCode) -> Failure {
    let why = format!("{origin} responded with status {status}");
    let passes =
        status.is_server_error() || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status);
    if passes { Failure::transient(why) } else { Failure::last(why) }
}

/// Strips the error number that Rust appends to system errors.
pub(crate) fn plain(error: &str) -> &str {
    error.rfind(" (os error ").filter(|_| error.ends_with(')')).map_or(error, |at| &error[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_split_into_parts() {
        let table = [
            ("http://a/b?c=d#e", "http://a", "/b?c=d", None),
            ("HTTPS://u:p@A.example:8443?q", "https://a.example:8443", "/?q", Some("Basic dTpw")),
            ("http://u%3A:p%40@[::1]:81/", "http://[::1]:81", "/", Some("Basic dTo6cEA=")),
            ("http://token@a", "http://a", "/", Some("Basic dG9rZW46")),
        ];
        for (text, origin, path, authorization) in table {
            let url = Url::parse(text).unwrap();
            assert_eq!((url.origin.to_string().as_str(), url.path.as_str()), (origin, path), "{text}");
            assert_eq!(url.authorization.as_ref().map(|value| value.to_str().unwrap()), authorization, "{text}");
        }
        assert!(Url::parse("ftp://secret/").err().is_some_and(|failure| !failure.why.contains("secret")));
    }
}
