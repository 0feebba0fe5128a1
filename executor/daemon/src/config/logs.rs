//! Reads the table `logs`: sinks for container output in addition to each container's file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use executor_core::settings::Bytes;
use serde::Deserialize;

use super::metrics::LABELS_MAX;
use super::{Check, ConfigError, SOCKET_PATH_MAX};

/// Default of `logs.journald.socket`.
const JOURNAL: &str = "/run/systemd/journal/socket";
/// Bounds of the maximum message size, in bytes. Every RFC 5425 receiver accepts the minimum.
const MESSAGE_BYTES: std::ops::RangeInclusive<u64> = 2048..=1 << 20;
/// Maximum size of a message to a syslog unix socket, in bytes: larger messages do not fit into a datagram.
const DATAGRAM_BYTES_MAX: u64 = 64 << 10;
/// Maximum value of the limit on waiting logs of deleted containers, in bytes.
const WAITING_BYTES_MAX: u64 = 1 << 40;
/// Maximum length of an application name, in bytes (RFC 5424, section 6).
const APP_NAME_MAX: usize = 48;
/// Maximum length of a structured data name, in bytes (RFC 5424, section 6).
const SD_ID_MAX: usize = 32;
/// Maximum length of a host name, in bytes.
const HOST_MAX: usize = 253;
/// Facility names in numeric order (RFC 5424, table 1). The facilities between ftp and local0 have no common name.
const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp", "", "", "",
    "", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7",
];
/// Journal fields that a label must not map to.
const JOURNAL_FIELDS: [&str; 4] = ["MESSAGE", "MESSAGE_ID", "PRIORITY", "TID"];
/// Prefixes of journal fields that a label must not map to.
const JOURNAL_PREFIXES: [&str; 6] = ["CONTAINER_", "EXECUTOR_", "SYSLOG_", "CODE_", "OBJECT_", "COREDUMP_"];

/// The table `logs` of the file.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Logs {
    targets: Vec<OutputTarget>,
    labels: Vec<String>,
    message_bytes_max: Bytes,
    waiting_bytes_max: Bytes,
    journald: Journald,
    syslog: Syslog,
}

impl Default for Logs {
    fn default() -> Self {
        Self {
            targets: vec![OutputTarget::File],
            labels: Vec::new(),
            // rsyslog accepts messages of up to 8,096 bytes by default, and loses its position in a stream with larger
            // messages.
            message_bytes_max: Bytes(8000),
            waiting_bytes_max: Bytes(256 << 20),
            journald: Journald::default(),
            syslog: Syslog::default(),
        }
    }
}

/// Destination of container output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum OutputTarget {
    /// The log file of each container, which is always written.
    File,
    Journald,
    Syslog,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Journald {
    socket: PathBuf,
}

impl Default for Journald {
    fn default() -> Self {
        Self { socket: JOURNAL.into() }
    }
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Syslog {
    address: Option<String>,
    ca_file: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    facility: String,
    app_name: String,
    structured_data_id: String,
}

impl Default for Syslog {
    fn default() -> Self {
        Self {
            address: None,
            ca_file: None,
            certificate: None,
            key: None,
            facility: "user".to_owned(),
            app_name: "executor".to_owned(),
            // RFC 5612 reserves this enterprise number for examples. This project has no number of its own.
            structured_data_id: "container@32473".to_owned(),
        }
    }
}

#[derive(Clone, Debug)]
pub struct LogSettings {
    /// Socket of the journal, if output is sent there.
    pub journald: Option<PathBuf>,
    /// Syslog receiver, if output is sent there.
    pub syslog: Option<SyslogSettings>,
    /// Container labels that are added to each message.
    pub labels: Vec<String>,
    /// Maximum message size, in bytes. Longer lines are split.
    pub message_bytes_max: usize,
    /// Maximum size of deleted containers' logs that wait for a receiver, in bytes.
    pub waiting_bytes_max: u64,
}

#[derive(Clone, Debug)]
pub struct SyslogSettings {
    pub address: SyslogAddress,
    /// Facility number of each message (RFC 5424, table 1).
    pub facility: u8,
    /// Application name in each message.
    pub app_name: String,
    /// Name of the structured data element with the container's fields.
    pub structured_data_id: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyslogAddress {
    /// TLS over TCP (RFC 5425).
    Tls {
        /// Host name, which the receiver's certificate must contain.
        host: String,
        /// TCP port of the receiver.
        port: u16,
        /// CA certificates that verify the receiver's certificate (PEM).
        ca_file: PathBuf,
        /// This node's client certificate and key (PEM), if the receiver requires one.
        own: Option<(PathBuf, PathBuf)>,
    },
    /// Unix socket, datagram or stream.
    Unix(PathBuf),
}

impl Logs {
    /// Resolves the table `logs`. All errors are reported together.
    pub(super) fn resolve(self, check: &Check) -> Result<LogSettings, ConfigError> {
        let mut faults = Vec::new();
        let (message, waiting) = (self.message_bytes_max.0, self.waiting_bytes_max.0);
        if !MESSAGE_BYTES.contains(&message) {
            let why = format!("must be {} to {}", MESSAGE_BYTES.start(), MESSAGE_BYTES.end());
            faults.push(check.fault("logs.message_bytes_max", &message, &why));
        }
        if waiting > WAITING_BYTES_MAX {
            let why = format!("must be at most {WAITING_BYTES_MAX}");
            faults.push(check.fault("logs.waiting_bytes_max", &waiting, &why));
        }
        labels(&self.labels, check, &mut faults);
        let wants = |target| self.targets.contains(&target);
        if let Err(why) = unix_path(&self.journald.socket) {
            faults.push(check.fault("logs.journald.socket", &self.journald.socket.display(), &why));
        }
        let syslog = self.syslog.resolve(wants(OutputTarget::Syslog), message, check, &mut faults);
        ConfigError::all(faults)?;
        Ok(LogSettings {
            journald: wants(OutputTarget::Journald).then_some(self.journald.socket),
            syslog: syslog.filter(|_| wants(OutputTarget::Syslog)),
            labels: self.labels,
            message_bytes_max: usize::try_from(message).unwrap_or(usize::MAX),
            waiting_bytes_max: waiting,
        })
    }
}

fn unix_path(path: &std::path::Path) -> Result<(), String> {
    if !path.is_absolute() {
        return Err("must be an absolute path".to_owned());
    }
    match path.as_os_str().len() {
        length if length > SOCKET_PATH_MAX => Err(format!("the socket path must be at most {SOCKET_PATH_MAX} bytes")),
        _ => Ok(()),
    }
}

/// Checks label names, which become field names.
fn labels(names: &[String], check: &Check, faults: &mut Vec<ConfigError>) {
    let mut fault = |why: &str| faults.push(check.fault("logs.labels", &names.join(", "), why));
    if names.len() > LABELS_MAX {
        return fault(&format!("has {} entries; at most {LABELS_MAX} are allowed", names.len()));
    }
    let mut fields = BTreeMap::new();
    for name in names {
        let field = journal_field(name);
        let is_reserved = JOURNAL_FIELDS.contains(&&*field) || JOURNAL_PREFIXES.iter().any(|p| field.starts_with(p));
        // A journal field name has at most 64 characters.
        if name.is_empty() || name.len() > 64 {
            fault(&format!("{name:?} is {} bytes; 1 to 64 are allowed", name.len()));
        } else if !field.starts_with(|c: char| c.is_ascii_uppercase()) {
            fault(&format!("{name:?} must begin with a letter"));
        } else if is_reserved {
            fault(&format!("{name:?} would become the field {field}, which is reserved"));
        } else if let Some(other) = fields.insert(field.clone(), name) {
            fault(&format!("{other:?} and {name:?} would both become {field}"));
        }
    }
}

/// Returns the journal field for a container label: uppercase, with `_` for characters that the journal rejects.
pub(crate) fn journal_field(label: &str) -> String {
    label.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

impl Syslog {
    fn resolve(
        self,
        wanted: bool,
        message: u64,
        check: &Check,
        faults: &mut Vec<ConfigError>,
    ) -> Option<SyslogSettings> {
        let facility = FACILITIES.iter().position(|name| *name == self.facility && !name.is_empty());
        if facility.is_none() {
            let names = FACILITIES.iter().filter(|name| !name.is_empty()).copied().collect::<Vec<_>>().join(", ");
            faults.push(check.fault("logs.syslog.facility", &self.facility, &format!("must be one of {names}")));
        }
        if !is_printable(&self.app_name, APP_NAME_MAX) {
            let why = format!("must be 1 to {APP_NAME_MAX} printable ASCII characters without spaces");
            faults.push(check.fault("logs.syslog.app_name", &self.app_name, &why));
        }
        let id = &self.structured_data_id;
        let has_number = id.split_once('@').is_some_and(|(name, number)| {
            let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            !name.is_empty() && number.split('.').all(is_number)
        });
        if !is_printable(id, SD_ID_MAX) || id.contains(['=', ']', '"']) || !has_number {
            let why = format!("must be NAME@NUMBER with a private enterprise number, of at most {SD_ID_MAX} bytes");
            faults.push(check.fault("logs.syslog.structured_data_id", id, &why));
        }
        if wanted && self.address.is_none() {
            let why = "is required if logs.targets has \"syslog\"";
            faults.push(check.fault("logs.syslog.address", &"(not set)", why));
        }
        let is_unix = self.address.as_ref().is_some_and(|address| address.starts_with("unix:"));
        if is_unix && message > DATAGRAM_BYTES_MAX {
            let why = format!("must be at most {DATAGRAM_BYTES_MAX} if logs.syslog.address is a unix socket");
            faults.push(check.fault("logs.message_bytes_max", &message, &why));
        }
        let files = [("ca_file", &self.ca_file), ("certificate", &self.certificate), ("key", &self.key)];
        for (key, path) in files.iter().filter_map(|(key, path)| Some((key, path.as_ref()?))) {
            let key = format!("logs.syslog.{key}");
            if !path.is_absolute() {
                faults.push(check.fault(key, &path.display(), "must be an absolute path"));
            } else if is_unix || self.address.is_none() {
                faults.push(check.fault(key, &path.display(), "needs a logs.syslog.address with tls://"));
            }
        }
        let own = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            (Some(path), None) | (None, Some(path)) => {
                let key = if self.key.is_some() { "logs.syslog.key" } else { "logs.syslog.certificate" };
                faults.push(check.fault(key, &path.display(), "certificate and key must be set together"));
                None
            }
        };
        let address = self.address.and_then(|text| match address(&text, self.ca_file, own) {
            Ok(address) => Some(address),
            Err(why) => {
                faults.push(check.fault("logs.syslog.address", &text, &why));
                None
            }
        });
        Some(SyslogSettings {
            address: address?,
            facility: u8::try_from(facility?).ok()?,
            app_name: self.app_name,
            structured_data_id: self.structured_data_id,
        })
    }
}

fn is_printable(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn address(text: &str, ca_file: Option<PathBuf>, own: Option<(PathBuf, PathBuf)>) -> Result<SyslogAddress, String> {
    let form = "must be tls://HOST:PORT or unix:///ABSOLUTE/PATH";
    if let Some(path) = text.strip_prefix("unix://") {
        return unix_path(path.as_ref()).map(|()| SyslogAddress::Unix(path.into()));
    }
    let (host, port) = text.strip_prefix("tls://").and_then(|rest| rest.rsplit_once(':')).ok_or(form)?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port: u16 = port.parse().ok().filter(|port| *port > 0).ok_or("the port must be 1 to 65535")?;
    if host.is_empty() || host.len() > HOST_MAX {
        return Err(format!("the host is {} bytes; 1 to {HOST_MAX} are allowed", host.len()));
    }
    rustls::pki_types::ServerName::try_from(host).map_err(|_| "the host must be a DNS name or an IP address")?;
    let ca_file = ca_file.ok_or("needs logs.syslog.ca_file to verify the receiver")?;
    Ok(SyslogAddress::Tls { host: host.to_owned(), port, ca_file, own })
}
