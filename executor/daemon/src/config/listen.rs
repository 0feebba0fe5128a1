//! Reads the table `listen`: the control plane's socket, and the TCP listener with its callers.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use executor_transport::tls::{HandshakeLimits, TlsFiles};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::{Check, ConfigError};
use crate::access::callers::{CallerRule, Callers, Named};
use crate::access::sets;

/// Maximum number of `[[callers]]` entries.
const CALLERS_MAX: usize = 1000;
/// Maximum number of `methods` of an entry.
const METHODS_MAX: usize = 100;
/// Maximum length of an identity, in bytes.
const IDENTITY_MAX: usize = 2048;
/// Maximum value of the limit on concurrent handshakes.
const HANDSHAKES_MAX: u64 = 10_000;
/// Maximum value of the handshake time limit, in seconds.
const HANDSHAKE_SECONDS_MAX: u64 = 300;
/// Maximum value of the limit on connections per address.
const EACH_MAX: u64 = 100_000;

/// The table `listen` of the file. The string value `listen = "unix:///PATH"` is short for `listen.unix`.
#[derive(Debug, Default)]
pub(super) struct Listen {
    pub(super) unix: Option<String>,
    pub(super) tcp: Tcp,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Table {
    unix: Option<String>,
    tcp: Tcp,
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrTable;
        impl<'de> Visitor<'de> for TextOrTable {
            type Value = Listen;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string such as \"unix:///PATH\", or a table with `unix` and `tcp`")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Listen, E> {
                Ok(Listen { unix: Some(text.to_owned()), tcp: Tcp::default() })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Listen, A::Error> {
                let Table { unix, tcp } = Table::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Listen { unix, tcp })
            }
        }
        deserializer.deserialize_struct("Listen", &["unix", "tcp"], TextOrTable)
    }
}

/// The table `listen.tcp`. The TCP listener is used only if an address is set.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Tcp {
    address: Option<String>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
    handshakes: u64,
    handshake_seconds: u64,
    connections_per_address: u64,
}

impl Default for Tcp {
    fn default() -> Self {
        Self {
            address: None,
            certificate: None,
            key: None,
            client_ca: None,
            handshakes: 512,
            handshake_seconds: 10,
            connections_per_address: 128,
        }
    }
}

/// An entry of `[[callers]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Caller {
    uri: Option<String>,
    dns: Option<String>,
    cn: Option<String>,
    ou: Option<String>,
    methods: Vec<String>,
}

/// Settings of the TCP listener.
#[derive(Clone, Debug)]
pub struct TcpSettings {
    pub address: SocketAddr,
    /// Certificate and key files.
    pub files: TlsFiles,
    /// Limits that apply before a client's certificate is verified.
    pub limits: HandshakeLimits,
    /// Callers and their allowed methods.
    pub callers: Callers,
}

impl Tcp {
    /// Resolves the tables `listen.tcp` and `callers`. All errors are reported together.
    pub(super) fn resolve(self, callers: Vec<Caller>, check: &Check) -> Result<Option<TcpSettings>, ConfigError> {
        let mut faults = Vec::new();
        let mut within = |key: &'static str, value: u64, most: u64| {
            if !(1..=most).contains(&value) {
                faults.push(check.fault(key, &value, &format!("must be 1 to {most}")));
            }
            usize::try_from(value).unwrap_or(usize::MAX)
        };
        let handshakes = within("listen.tcp.handshakes", self.handshakes, HANDSHAKES_MAX);
        within("listen.tcp.handshake_seconds", self.handshake_seconds, HANDSHAKE_SECONDS_MAX);
        let each = within("listen.tcp.connections_per_address", self.connections_per_address, EACH_MAX);
        let callers = rules(callers, check, &mut faults);
        let address = self.address.as_ref().map(|text| {
            text.parse::<SocketAddr>().map_err(|_| {
                let why = "must be an IP address and a port, such as 10.0.0.5:7443 or [::]:7443";
                faults.push(check.fault("listen.tcp.address", text, why));
            })
        });
        let wanted = self.address.is_some();
        let mut file = |key: &'static str, path: Option<PathBuf>| match path {
            Some(path) if path.is_absolute() && wanted => path,
            Some(path) if path.is_absolute() => {
                faults.push(check.fault(key, &path.display(), "needs listen.tcp.address as well"));
                path
            }
            Some(path) => {
                faults.push(check.fault(key, &path.display(), "must be an absolute path"));
                path
            }
            None => {
                if wanted {
                    faults.push(check.fault(key, &"(not set)", "is required if listen.tcp.address is set"));
                }
                PathBuf::new()
            }
        };
        let files = TlsFiles {
            certificate: file("listen.tcp.certificate", self.certificate),
            key: file("listen.tcp.key", self.key),
            client_ca: file("listen.tcp.client_ca", self.client_ca),
        };
        if wanted && callers.is_empty() && faults.is_empty() {
            let why = "no client may call over TCP: add at least one [[callers]] entry, or unset listen.tcp.address";
            faults.push(check.fault("callers", &"[]", why));
        }
        if !wanted && !callers.is_empty() && faults.is_empty() {
            let why = "callers need a TCP listener: set listen.tcp.address as well";
            faults.push(check.fault("callers", &format!("{} entries", callers.len()), why));
        }
        ConfigError::all(faults)?;
        let Some(Ok(address)) = address else { return Ok(None) };
        Ok(Some(TcpSettings {
            address,
            files,
            limits: HandshakeLimits { handshakes, time: Duration::from_secs(self.handshake_seconds), each },
            callers: Callers(callers),
        }))
    }
}

/// Resolves the `[[callers]]` entries, and collects their errors.
fn rules(callers: Vec<Caller>, check: &Check, faults: &mut Vec<ConfigError>) -> Vec<CallerRule> {
    if callers.len() > CALLERS_MAX {
        faults.push(check.fault("callers", &callers.len(), &format!("must have at most {CALLERS_MAX} entries")));
        return Vec::new();
    }
    let mut rules = Vec::with_capacity(callers.len());
    for (place, Caller { uri, dns, cn, ou, methods: words }) in callers.into_iter().enumerate() {
        let mut fault = |field: &str, value: &str, why: &str| {
            let key = if field.is_empty() { format!("callers[{place}]") } else { format!("callers[{place}].{field}") };
            faults.push(check.fault(key, &value, why));
        };
        let identities = [("uri", &uri), ("dns", &dns), ("cn", &cn), ("ou", &ou)];
        for (field, text) in identities {
            if text.as_ref().is_some_and(|text| text.is_empty() || text.len() > IDENTITY_MAX) {
                let length = text.as_ref().map_or(0, String::len);
                fault(field, &format!("{length} bytes"), &format!("must be 1 to {IDENTITY_MAX} bytes"));
            }
        }
        if identities.iter().all(|(_, text)| text.is_none()) {
            fault("", "(no identity)", "must name at least one of uri, dns, cn and ou");
        }
        if words.is_empty() || words.len() > METHODS_MAX {
            fault("methods", &words.len().to_string(), &format!("must have 1 to {METHODS_MAX} entries"));
        }
        let mut methods = Vec::new();
        for word in words.iter().take(METHODS_MAX) {
            match sets::methods(word) {
                Ok(found) => methods.extend(found),
                Err(why) => fault("methods", word, &why),
            }
        }
        rules.push(CallerRule { named: Named { uri, dns, cn, ou }, methods });
    }
    rules
}
