//! Parses the address of a convention server: a URL or the name of a service (rule 1 of `docs/guides/conventions.md`).

use std::fmt;

use executor_http::Origin;
use serde::Deserialize;

use crate::labels::is_subdomain;
use crate::violation::shown;

/// Default port of a service.
const SERVICE_PORT: u16 = 443;

/// Server and path of a convention. Connections always use TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub(crate) origin: Origin,
    pub(crate) path: String,
}

/// A Kubernetes service, which is resolved as `NAME.NAMESPACE.svc`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Service {
    name: String,
    namespace: String,
    path: Option<String>,
    port: Option<u16>,
}

impl Endpoint {
    /// Parses a URL by Kubernetes' rules for webhooks: https with a host and without user, query or fragment.
    pub(crate) fn from_url(url: &str) -> Result<Self, String> {
        let Some(rest) = url.strip_prefix("https://") else {
            return Err(format!("{} is not an https:// URL", shown(url)));
        };
        for (sign, what) in [('?', "a query"), ('#', "a fragment")] {
            if rest.contains(sign) {
                return Err(format!("{} has {what}, which is not permitted", shown(url)));
            }
        }
        if rest.split('/').next().is_some_and(|authority| authority.contains('@')) {
            return Err("has a user name, which is not permitted".to_owned()); // the user name may be a secret
        }
        let base = Origin::new("", true);
        let (origin, path) = Origin::parse(url, &base).ok_or_else(|| format!("{} is not a URL", shown(url)))?;
        if origin.host.is_empty() {
            return Err(format!("{} has no host", shown(url)));
        }
        // Refuse an invalid port, which would otherwise become the default port.
        let authority = rest.split('/').next().unwrap_or_default();
        let port = authority.rsplit_once(':').filter(|(_, port)| !port.contains(']')).map(|(_, port)| port);
        if origin.port == 0 || port.is_some_and(|port| port.parse() != Ok(origin.port)) {
            return Err(format!("{} has no valid port", shown(url)));
        }
        Ok(Self { origin, path })
    }

    /// Validates a service. Returns all errors, each with its field.
    pub(crate) fn from_service(service: &Service) -> Result<Self, Vec<(&'static str, String)>> {
        let mut faults = Vec::new();
        for (field, name) in [("name", &service.name), ("namespace", &service.namespace)] {
            if !is_subdomain(name) {
                faults.push((field, format!("{} is not a valid object name", shown(name))));
            }
        }
        let path = service.path.as_deref().unwrap_or("/");
        let parts = path.strip_prefix('/').map(|rest| rest.strip_suffix('/').unwrap_or(rest));
        let plain = |rest: &str| rest.is_empty() || rest.split('/').all(is_subdomain);
        if !parts.is_some_and(plain) {
            faults.push(("path", format!("{} is not a valid path; use DNS subdomains separated by `/`", shown(path))));
        }
        if service.port == Some(0) {
            faults.push(("port", "0 is not a port; use 1 to 65535".to_owned()));
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let host = format!("{}.{}.svc", service.name, service.namespace);
        let origin = Origin { secure: true, host, port: service.port.unwrap_or(SERVICE_PORT) };
        Ok(Self { origin, path: path.to_owned() })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin, self.path)
    }
}
