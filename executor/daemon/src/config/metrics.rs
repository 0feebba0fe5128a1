//! Reads the table `metrics`: the Prometheus endpoint, and limits on the number of series.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

use super::{Check, ConfigError, SOCKET_PATH_MAX};

/// Maximum number of containers with their own series.
const CONTAINERS_MAX: u64 = 10_000;
/// Maximum number of container labels that become series labels.
pub(super) const LABELS_MAX: usize = 10;
/// Maximum length of a container label name, in bytes.
const LABEL_MAX: usize = 63;

/// The table `metrics` of the file.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Metrics {
    listen: Option<String>,
    containers: Containers,
    max_containers: u64,
    labels: Vec<String>,
}

/// Selects whether metrics have separate series for each container.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Containers {
    #[default]
    Off,
    On,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { listen: None, containers: Containers::Off, max_containers: 500, labels: Vec::new() }
    }
}

#[derive(Clone, Debug)]
pub struct MetricsSettings {
    /// Address of the metrics endpoint, if it is served.
    pub listen: Option<MetricsAddress>,
    /// True if containers have their own series.
    pub containers: bool,
    /// Maximum number of containers with their own series.
    pub containers_max: usize,
    /// Names of container labels that become series labels.
    pub labels: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAddress {
    /// Path of a unix socket.
    Unix(PathBuf),
    Loopback(SocketAddr),
}

impl Metrics {
    pub(super) fn resolve(self, check: &Check) -> Result<MetricsSettings, ConfigError> {
        let listen = self.listen.map(|address| listen(check, &address)).transpose()?;
        if !(1..=CONTAINERS_MAX).contains(&self.max_containers) {
            let why = format!("must be 1 to {CONTAINERS_MAX}");
            return Err(check.fault("metrics.max_containers", &self.max_containers, &why));
        }
        if self.labels.len() > LABELS_MAX {
            let why = format!("has {} entries; at most {LABELS_MAX} are allowed", self.labels.len());
            return Err(check.fault("metrics.labels", &self.labels.join(", "), &why));
        }
        let mut names = BTreeMap::new();
        for label in &self.labels {
            if label.is_empty() || label.len() > LABEL_MAX {
                let why = format!("{label:?} is {} bytes; 1 to {LABEL_MAX} are allowed", label.len());
                return Err(check.fault("metrics.labels", &self.labels.join(", "), &why));
            }
            let name = label_name(label);
            if let Some(other) = names.insert(name.clone(), label) {
                let why = format!("{other:?} and {label:?} would both become {name}");
                return Err(check.fault("metrics.labels", &self.labels.join(", "), &why));
            }
        }
        Ok(MetricsSettings {
            listen,
            containers: matches!(self.containers, Containers::On),
            containers_max: usize::try_from(self.max_containers).unwrap_or(usize::MAX),
            labels: self.labels,
        })
    }
}

fn listen(check: &Check, address: &str) -> Result<MetricsAddress, ConfigError> {
    let fault = |why: &str| Err(check.fault("metrics.listen", &address, why));
    if let Some(path) = address.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        if !path.starts_with('/') {
            return fault("must be unix:/ABSOLUTE/PATH or a loopback address with a port, such as 127.0.0.1:9464");
        }
        if path.len() > SOCKET_PATH_MAX {
            return fault(&format!("the socket path must be at most {SOCKET_PATH_MAX} bytes"));
        }
        return Ok(MetricsAddress::Unix(path.into()));
    }
    match address.parse::<SocketAddr>() {
        Ok(parsed) if parsed.ip().is_loopback() && parsed.port() > 0 => Ok(MetricsAddress::Loopback(parsed)),
        Ok(parsed) if parsed.ip().is_loopback() => fault("the port must be 1 to 65535"),
        Ok(_) => fault("is not a loopback address: metrics are served without encryption and authentication"),
        Err(_) => fault("must be unix:/ABSOLUTE/PATH or a loopback address with a port, such as 127.0.0.1:9464"),
    }
}

/// Returns the series label for a container label: `label_` and the name, with `_` for characters that Prometheus
/// rejects.
pub(crate) fn label_name(name: &str) -> String {
    let rest = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
    std::iter::once("label_").map(str::to_owned).chain(rest.map(String::from)).collect()
}
