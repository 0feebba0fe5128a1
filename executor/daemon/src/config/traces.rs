//! Reads the table `traces`: the trace collector.

use hyper::Uri;
use serde::Deserialize;

use super::{Check, ConfigError};

/// Maximum length of a collector address, in bytes.
const ENDPOINT_MAX: usize = 1024;
/// Maximum value of the limit on queued spans.
const QUEUE_MAX: u64 = 65_536;
/// Path for traces in OTLP over HTTP.
const HTTP_PATH: &str = "/v1/traces";

/// The table `traces` of the file.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Traces {
    endpoint: Option<String>,
    protocol: TraceProtocol,
    queue_max: u64,
}

impl Default for Traces {
    fn default() -> Self {
        Self { endpoint: None, protocol: TraceProtocol::Grpc, queue_max: 4096 }
    }
}

/// Protocol of a trace collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceProtocol {
    /// OTLP over gRPC.
    Grpc,
    /// OTLP over HTTP, with Protocol Buffers.
    Http,
}

#[derive(Clone, Debug)]
pub struct TraceSettings {
    /// Collector address: `http://HOST:PORT`, followed by a path if the protocol is HTTP.
    pub endpoint: String,
    /// Protocol of the collector.
    pub protocol: TraceProtocol,
    /// Maximum number of queued spans.
    pub queue_max: usize,
}

impl Traces {
    pub(super) fn resolve(self, check: &Check) -> Result<Option<TraceSettings>, ConfigError> {
        if !(1..=QUEUE_MAX).contains(&self.queue_max) {
            return Err(check.fault("traces.queue_max", &self.queue_max, &format!("must be 1 to {QUEUE_MAX}")));
        }
        let Some(mut endpoint) = self.endpoint else { return Ok(None) };
        // The address may contain a password, so errors must not repeat it.
        if endpoint.contains('@') {
            return Err(check.fault("traces.endpoint", &"...", "must not contain a user name or password"));
        }
        let fault = |why: &str| Err(check.fault("traces.endpoint", &endpoint, why));
        if endpoint.len() > ENDPOINT_MAX {
            return fault(&format!("is {} bytes; the maximum is {ENDPOINT_MAX}", endpoint.len()));
        }
        let uri: Uri = match endpoint.parse() {
            Ok(uri) => uri,
            Err(_) => return fault("must be http://HOST:PORT"),
        };
        match (uri.scheme_str(), uri.host(), uri.port()) {
            (Some("http"), Some(_), Some(_)) => {}
            (Some("https"), ..) => {
                return fault("TLS is not supported: use a collector on this machine that forwards the traces");
            }
            _ => return fault("must be http://HOST:PORT"),
        }
        let has_path = !matches!(uri.path(), "" | "/");
        match self.protocol {
            TraceProtocol::Grpc if has_path => return fault("must not have a path if the protocol is gRPC"),
            TraceProtocol::Http if !has_path => endpoint = format!("{}{HTTP_PATH}", endpoint.trim_end_matches('/')),
            TraceProtocol::Grpc | TraceProtocol::Http => {}
        }
        let queue_max = usize::try_from(self.queue_max).unwrap_or(usize::MAX);
        Ok(Some(TraceSettings { endpoint, protocol: self.protocol, queue_max }))
    }
}
