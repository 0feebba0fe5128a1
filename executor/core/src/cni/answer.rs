//! Parses the output of CNI plugins: results, errors and versions.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Version;

/// Maximum number of addresses of a container.
const ADDRESSES_MAX: usize = 64;
/// Maximum number of entries of each list in a plugin's result, except the list of addresses.
const LIST_MAX: usize = 256;
/// Maximum length of a plugin's error message, in bytes. The rest of the message is cut off.
const MESSAGE_MAX: usize = 1024;

/// An address of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// IP address.
    pub ip: IpAddr,
    /// Length of the network prefix, in bits.
    pub prefix: u8,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

impl Address {
    /// Parses an address with its prefix length: `10.1.0.5/24`.
    fn parse(text: &str) -> Option<Self> {
        let (ip, prefix) = text.split_once('/')?;
        let ip: IpAddr = ip.parse().ok()?;
        let prefix: u8 = prefix.parse().ok()?;
        (prefix <= if ip.is_ipv4() { 32 } else { 128 }).then_some(Self { ip, prefix })
    }

    /// Returns true if another address is in the same network.
    pub fn network_has(&self, other: IpAddr) -> bool {
        fn bits(ip: IpAddr) -> u128 {
            match ip {
                IpAddr::V4(ip) => u128::from(u32::from(ip)) << 96,
                IpAddr::V6(ip) => ip.into(),
            }
        }
        let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
        self.ip.is_ipv4() == other.is_ipv4() && bits(self.ip) & mask == bits(other) & mask
    }
}

/// Name servers and domains for resolv.conf.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    /// Addresses of the name servers that the container queries.
    pub servers: Vec<IpAddr>,
    /// Search domains of the resolver.
    pub searches: Vec<String>,
    /// Options of the resolver, as in resolv.conf(5).
    pub options: Vec<String>,
}

/// Addresses from the result of a network's plugins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Addresses of the container's interface.
    pub own: Vec<Address>,
    /// Addresses of the gateways.
    pub gateways: Vec<IpAddr>,
    /// Name servers and domains.
    pub dns: Dns,
    /// Gateways on which executord answers DNS queries.
    pub name_servers: Vec<IpAddr>,
}

impl Addresses {
    /// Parses a result of ADD in any supported version.
    ///
    /// # Errors
    /// Returns a description of the error if the result is invalid.
    pub fn parse(result: &Value) -> Result<Self, String> {
        let root = result.as_object().ok_or("the result is not an object")?;
        match root.get("cniVersion").map(|version| version.as_str().and_then(Version::from_name)) {
            None | Some(Some(_)) => {}
            Some(None) => return Err("`cniVersion` of the result is not a supported version".into()),
        }
        let mut found = Self::default();
        let interfaces = list(result, "interfaces", LIST_MAX)?;
        let inside = |index: u64| {
            let interface = usize::try_from(index).ok().and_then(|index| interfaces.get(index));
            interface.is_none_or(|one| one.get("sandbox").and_then(Value::as_str).is_some_and(|path| !path.is_empty()))
        };
        for (index, entry) in list(result, "ips", ADDRESSES_MAX)?.iter().enumerate() {
            let at = format!("`ips[{index}]` of the result");
            let address = entry.get("address").and_then(Value::as_str).and_then(Address::parse);
            let address = address.ok_or_else(|| format!("{at} has no address with a prefix length"))?;
            // Results also contain addresses of interfaces on the host.
            if entry.get("interface").and_then(Value::as_u64).is_none_or(inside) {
                found.own.push(address);
            }
            found.gateways.extend(address_of(entry, "gateway").map_err(|why| format!("{at}: {why}"))?);
        }
        for (index, route) in list(result, "routes", LIST_MAX)?.iter().enumerate() {
            found.gateways.extend(address_of(route, "gw").map_err(|why| format!("`routes[{index}]`: {why}"))?);
        }
        found.gateways.sort_unstable();
        found.gateways.dedup();
        if let Some(dns) = root.get("dns").filter(|dns| !dns.is_null()) {
            found.dns = Dns::parse(dns)?;
        }
        Ok(found)
    }
}

impl Dns {
    fn parse(dns: &Value) -> Result<Self, String> {
        let word =
            |text: &str| !text.is_empty() && text.len() <= 253 && text.bytes().all(|byte| byte.is_ascii_graphic());
        let words = |name: &str| -> Result<Vec<String>, String> {
            let texts = list(dns, name, LIST_MAX)?;
            let words = texts.iter().map(|text| text.as_str().filter(|text| word(text)).map(str::to_owned));
            words
                .collect::<Option<_>>()
                .ok_or_else(|| format!("`dns.{name}` of the result has an entry that is not visible ASCII"))
        };
        let servers = words("nameservers")?.iter().map(|text| text.parse().ok()).collect::<Option<_>>();
        let mut searches = words("search")?;
        if let Some(domain) = dns.get("domain").and_then(Value::as_str).filter(|domain| word(domain))
            && !searches.iter().any(|search| search == domain)
        {
            searches.insert(0, domain.to_owned());
        }
        Ok(Self {
            servers: servers.ok_or("`dns.nameservers` of the result has an entry that is not an IP address")?,
            searches,
            options: words("options")?,
        })
    }
}

fn list<'a>(value: &'a Value, name: &str, most: usize) -> Result<&'a [Value], String> {
    match value.get(name) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(list)) if list.len() <= most => Ok(list),
        Some(_) => Err(format!("`{name}` of the result is not a list of at most {most} entries")),
    }
}

fn address_of(value: &Value, name: &str) -> Result<Option<IpAddr>, String> {
    match value.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()) {
        None => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| format!("`{name}` is not an IP address")),
    }
}

/// Failure that a plugin reported, with the plugin's error message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginFailure {
    /// Error code; 0 if the plugin reported none. Codes below 100 are defined by the specification.
    pub code: u64,
    /// Error message on one line, truncated.
    pub message: String,
}

/// Returns the error of a failed plugin: the error object on standard output, otherwise the text on standard error.
pub fn plugin_failure(stdout: &[u8], stderr: &[u8]) -> PluginFailure {
    let reported = serde_json::from_slice::<Value>(stdout).ok();
    let part = |name: &str| reported.as_ref().and_then(|reported| reported.get(name)?.as_str()).unwrap_or_default();
    let code = reported.as_ref().and_then(|reported| reported.get("code")?.as_u64()).unwrap_or(0);
    let message = [part("msg"), part("details")].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
    let message = if message.is_empty() { String::from_utf8_lossy(stderr).into_owned() } else { message.join(": ") };
    let mut line = message.split_whitespace().collect::<Vec<_>>().join(" ").replace(crate::text::is_harmful, "?");
    line.truncate(line.floor_char_boundary(MESSAGE_MAX));
    PluginFailure { code, message: if line.is_empty() { "the plugin printed no error message".into() } else { line } }
}

/// Returns the versions that both the plugin and the executor support.
///
/// # Errors
/// Returns a description of the error if the output is not a list of versions.
pub fn supported_versions(answer: &Value) -> Result<Vec<Version>, String> {
    let names = list(answer, "supportedVersions", LIST_MAX)?;
    Ok(names.iter().filter_map(|name| Version::from_name(name.as_str()?)).collect())
}
