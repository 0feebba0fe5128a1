//! Checks the names in a container's certificate (its instance identity) against the operator's rules.
//!
//! executord checks a request with this code. The signing process checks the request again, with the settings that the
//! launcher has read. An empty list of rules allows nothing.

use crate::text::printable;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::settings::Unusable;
use crate::text::is_harmful;
use crate::violation::ViolationReason::{
    Duplicate, InvalidCharacter, InvalidFormat, NotAllowed, OutOfRange, TooLong, TooMany, Unsupported,
};
use crate::violation::{FieldFault, Violation};

/// Maximum number of entries in each list of names.
pub const IDENTITY_NAMES_MAX: usize = 32;
/// Maximum length of a common name in bytes, and of an organizational unit in characters (RFC 5280, appendix A.1).
pub const COMMON_NAME_MAX: usize = 64;
/// Characters that delimit the parts of a subject in string form (RFC 4514, section 2.4, and OpenSSL's `/OU=a/CN=b`). A
/// peer that parses the string would read the unit `a,OU=b` as two units.
const UNIT_DELIMITERS: &str = ",/=+;\"\\<>";
/// Maximum length of a DNS name, in bytes.
const DNS_NAME_MAX: usize = 253;
/// Maximum length of a SPIFFE ID, in bytes (SPIFFE-ID, section 2.3).
const SPIFFE_ID_MAX: usize = 2048;
/// Maximum length of a trust domain, in bytes (SPIFFE-ID, section 2.1).
const TRUST_DOMAIN_MAX: usize = 255;
/// Minimum validity period of a certificate, in seconds.
pub const TTL_MIN: u64 = 10;
/// Maximum configurable validity period of a certificate, in seconds.
pub const TTL_MAX: u64 = 31_536_000;
/// Maximum number of entries in each list of the settings.
const RULES_MAX: usize = 256;

/// The table `identity` of the configuration. Identities are off without a CA.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IdentitySettings {
    /// CA certificate (PEM), followed by the intermediate certificates that peers do not have.
    pub ca_certificate: PathBuf,
    /// Private key of the CA (PEM).
    pub ca_key: PathBuf,
    /// Default validity period of a certificate, in seconds.
    pub ttl_seconds: u64,
    /// Maximum validity period that a request can set, in seconds.
    pub ttl_seconds_max: u64,
    /// Directory of the identity files in the container.
    pub directory: PathBuf,
    /// File name of the certificate.
    pub certificate_name: String,
    /// File name of the private key.
    pub key_name: String,
    /// File name of the CA certificates.
    pub chain_name: String,
    /// Prefixes of organizational units that requests may use.
    pub organizational_unit_prefixes: Vec<String>,
    /// DNS names that requests may use, including all subdomains.
    pub dns_suffixes: Vec<String>,
    /// Networks whose addresses requests may use, as `ADDRESS/BITS`.
    pub ip_networks: Vec<String>,
    /// Trust domains of SPIFFE IDs that requests may use.
    pub spiffe_trust_domains: Vec<String>,
}

impl Default for IdentitySettings {
    fn default() -> Self {
        Self {
            ca_certificate: PathBuf::new(),
            ca_key: PathBuf::new(),
            ttl_seconds: 86_400,
            ttl_seconds_max: 604_800,
            directory: "/etc/cf-instance-credentials".into(),
            certificate_name: "instance.crt".into(),
            key_name: "instance.key".into(),
            chain_name: "ca.crt".into(),
            organizational_unit_prefixes: Vec::new(),
            dns_suffixes: Vec::new(),
            ip_networks: Vec::new(),
            spiffe_trust_domains: Vec::new(),
        }
    }
}

/// Names of a certificate in addition to the container's id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityNames {
    /// Organizational units of the subject, in this order.
    #[serde(default)]
    pub organizational_units: Vec<String>,
    /// DNS names in the certificate.
    #[serde(default)]
    pub dns_names: Vec<String>,
    /// IP addresses in the certificate.
    #[serde(default)]
    pub ip_addresses: Vec<String>,
    /// SPIFFE ID in the certificate, or an empty string.
    #[serde(default)]
    pub spiffe_id: String,
}

impl IdentitySettings {
    /// Returns true if certificates are signed.
    pub fn is_on(&self) -> bool {
        !self.ca_certificate.as_os_str().is_empty()
    }

    /// Returns the paths of certificate, key and chain in a container.
    pub fn files(&self) -> [PathBuf; 3] {
        [&self.certificate_name, &self.key_name, &self.chain_name].map(|name| self.directory.join(name))
    }

    /// Checks the values of the table `identity`.
    ///
    /// # Errors
    /// Returns the first invalid value with its key, if a value is invalid.
    pub fn check(&self) -> Result<(), Unusable> {
        let fault = |key: &str, value: String, why: String| Err(Unusable { key: key.into(), value, why });
        let absolute = |key: &str, path: &Path| {
            let plain = path.is_absolute() && !path.components().any(|part| part.as_os_str() == "..");
            let why = "must be an absolute path without `..`";
            if plain { Ok(()) } else { fault(key, path.display().to_string(), why.into()) }
        };
        for (key, path) in [("identity.ca_certificate", &self.ca_certificate), ("identity.ca_key", &self.ca_key)] {
            if !path.as_os_str().is_empty() {
                absolute(key, path)?;
            }
        }
        absolute("identity.directory", &self.directory)?;
        let ttl = |key: &str, value: u64| match (TTL_MIN..=TTL_MAX).contains(&value) {
            true => Ok(()),
            false => fault(key, value.to_string(), format!("must be {TTL_MIN} to {TTL_MAX}")),
        };
        ttl("identity.ttl_seconds", self.ttl_seconds)?;
        ttl("identity.ttl_seconds_max", self.ttl_seconds_max)?;
        let names = [
            ("identity.certificate_name", &self.certificate_name),
            ("identity.key_name", &self.key_name),
            ("identity.chain_name", &self.chain_name),
        ];
        for (index, (key, name)) in names.into_iter().enumerate() {
            let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
            if !(1..=64).contains(&name.len()) || name.starts_with("..") || name == "." || !name.bytes().all(plain) {
                return fault(key, name.clone(), "must be a file name of 1 to 64 characters of [A-Za-z0-9._-]".into());
            }
            if names[..index].iter().any(|(_, other)| *other == name) {
                return fault(key, name.clone(), "is also the name of another identity file".into());
            }
        }
        self.check_lists()?;
        if self.is_on() == self.ca_key.as_os_str().is_empty() {
            let (key, other) = if self.is_on() {
                ("identity.ca_key", "ca_certificate")
            } else {
                ("identity.ca_certificate", "ca_key")
            };
            return fault(key, String::new(), format!("is required with identity.{other}"));
        }
        if self.is_on() && self.ttl_seconds > self.ttl_seconds_max {
            let why = format!("must be at most identity.ttl_seconds_max, {}", self.ttl_seconds_max);
            return fault("identity.ttl_seconds", self.ttl_seconds.to_string(), why);
        }
        Ok(())
    }

    fn check_lists(&self) -> Result<(), Unusable> {
        type Rule = fn(&str) -> Result<(), FieldFault>;
        let lists: [(&'static str, &[String], Rule); 4] = [
            ("identity.organizational_unit_prefixes", &self.organizational_unit_prefixes, |text| {
                if text.is_empty() { Ok(()) } else { check_unit(text) }
            }),
            ("identity.dns_suffixes", &self.dns_suffixes, check_dns_name),
            ("identity.ip_networks", &self.ip_networks, |text| network(text).map(drop)),
            ("identity.spiffe_trust_domains", &self.spiffe_trust_domains, check_trust_domain),
        ];
        for (key, list, rule) in lists {
            if list.len() > RULES_MAX {
                let why = format!("has {} entries; at most {RULES_MAX} are allowed", list.len());
                return Err(Unusable { key: key.into(), value: String::new(), why });
            }
            for text in list {
                rule(text).map_err(|bad| Unusable { key: key.into(), value: text.clone(), why: bad.description })?;
            }
        }
        Ok(())
    }

    /// Checks the requested names and validity period. `id` is the container's id. Violations name the request's
    /// fields.
    pub fn evaluate(&self, id: &str, names: &IdentityNames, ttl_seconds: Option<u64>) -> Vec<Violation> {
        if !self.is_on() {
            let why = "this node issues no certificates: `identity.ca_certificate` is not set in its configuration";
            return vec![Violation::new("identity", Unsupported.because(why))];
        }
        let mut found = Vec::new();
        if id.len() > COMMON_NAME_MAX {
            let why = format!("is {} bytes; with an identity, the maximum is {COMMON_NAME_MAX}", id.len());
            found.push(Violation::new("id", TooLong.because(why)));
        }
        if let Some(ttl) = ttl_seconds
            && !(TTL_MIN..=self.ttl_seconds_max).contains(&ttl)
        {
            let why =
                format!("is {ttl} s; {TTL_MIN} s to {} s (identity.ttl_seconds_max) is allowed", self.ttl_seconds_max);
            found.push(Violation::new("identity.ttl", OutOfRange.because(why)));
        }
        let IdentityNames { organizational_units, dns_names, ip_addresses, spiffe_id } = names;
        check_list(&mut found, "identity.organizational_units", organizational_units, |unit| {
            check_unit(unit)?;
            let allowed = self.organizational_unit_prefixes.iter().any(|prefix| unit.starts_with(prefix));
            allowed_by("identity.organizational_unit_prefixes", unit, allowed)
        });
        check_list(&mut found, "identity.dns_names", dns_names, |name| {
            check_dns_name(name.strip_prefix("*.").unwrap_or(name))?;
            let below = |suffix: &String| {
                name.strip_suffix(suffix.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            };
            allowed_by("identity.dns_suffixes", name, self.dns_suffixes.iter().any(below))
        });
        check_list(&mut found, "identity.ip_addresses", ip_addresses, |text| {
            let address = address(text)?;
            let within = |rule: &String| network(rule).is_ok_and(|network| contains(network, address));
            allowed_by("identity.ip_networks", text, self.ip_networks.iter().any(within))
        });
        if !spiffe_id.is_empty() {
            let result = trust_domain(spiffe_id).and_then(|domain| {
                let allowed = self.spiffe_trust_domains.iter().any(|rule| rule == domain);
                allowed_by("identity.spiffe_trust_domains", spiffe_id, allowed)
            });
            found.extend(result.err().map(|fault| Violation::new("identity.spiffe_id", fault)));
        }
        found
    }
}

fn allowed_by(key: &str, name: &str, allowed: bool) -> Result<(), FieldFault> {
    if allowed { Ok(()) } else { Err(NotAllowed.because(format!("{name:?} is not allowed by this node's {key}"))) }
}

fn check_list(
    found: &mut Vec<Violation>,
    field: &str,
    list: &[String],
    evaluate: impl Fn(&String) -> Result<(), FieldFault>,
) {
    if list.len() > IDENTITY_NAMES_MAX {
        let why = format!("has {} entries; at most {IDENTITY_NAMES_MAX} are allowed", list.len());
        found.push(Violation::new(field, TooMany.because(why)));
        return;
    }
    for (index, name) in list.iter().enumerate() {
        let result = match list[..index].contains(name) {
            true => Err(Duplicate.because(format!("{name:?} is given twice"))),
            false => evaluate(name),
        };
        found.extend(result.err().map(|fault| Violation::new(format!("{field}[{index}]"), fault)));
    }
}

fn check_unit(unit: &str) -> Result<(), FieldFault> {
    if unit.is_empty() || unit.chars().count() > COMMON_NAME_MAX || unit.len() > 4 * COMMON_NAME_MAX {
        let why = format!("is {} characters; 1 to {COMMON_NAME_MAX} are allowed", unit.chars().count());
        return Err(TooLong.because(why));
    }
    match unit.chars().find(|c| is_harmful(*c) || UNIT_DELIMITERS.contains(*c)) {
        None => Ok(()),
        Some(c) => {
            let why = format!(
                "contains {c:?}; control characters, bidirectional marks and {UNIT_DELIMITERS} are not allowed"
            );
            Err(InvalidCharacter.because(why))
        }
    }
}

/// Checks a DNS name: labels of lower-case letters, digits and `-`.
fn check_dns_name(name: &str) -> Result<(), FieldFault> {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    match name.len() <= DNS_NAME_MAX && name.split('.').all(is_label) {
        true => Ok(()),
        false => {
            let why = format!(
                "{:?} is not a DNS name; use labels of [a-z0-9-] separated by dots, at most {DNS_NAME_MAX} bytes",
                printable(name, 64)
            );
            Err(InvalidFormat.because(why))
        }
    }
}

fn check_trust_domain(domain: &str) -> Result<(), FieldFault> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-');
    match (1..=TRUST_DOMAIN_MAX).contains(&domain.len()) && domain.bytes().all(plain) {
        true => Ok(()),
        false => Err(InvalidFormat.because(format!("must be 1 to {TRUST_DOMAIN_MAX} characters of [a-z0-9._-]"))),
    }
}

/// Returns the trust domain of a SPIFFE ID of a workload (SPIFFE-ID, section 2; X509-SVID, section 2).
fn trust_domain(id: &str) -> Result<&str, FieldFault> {
    if id.len() > SPIFFE_ID_MAX {
        return Err(TooLong.because(format!("is {} bytes; the maximum is {SPIFFE_ID_MAX}", id.len())));
    }
    let wrong = || InvalidFormat.because("must be spiffe://TRUST-DOMAIN/PATH, with segments of [A-Za-z0-9._-]");
    let (domain, path) = id.strip_prefix("spiffe://").and_then(|rest| rest.split_once('/')).ok_or_else(wrong)?;
    check_trust_domain(domain).map_err(|fault| fault.within("trust domain"))?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let is_segment = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(plain);
    if path.split('/').all(is_segment) { Ok(domain) } else { Err(wrong()) }
}

fn address(text: &str) -> Result<IpAddr, FieldFault> {
    text.parse().map_err(|_| InvalidFormat.because(format!("\"{}\" is not an IP address", printable(text, 64))))
}

fn network(text: &str) -> Result<(IpAddr, u32), FieldFault> {
    let wrong = || InvalidFormat.because("must be a network in the form ADDRESS/BITS");
    let (base, bits) = text.split_once('/').ok_or_else(wrong)?;
    let (base, bits): (IpAddr, u32) = (base.parse().map_err(|_| wrong())?, bits.parse().map_err(|_| wrong())?);
    let most = if base.is_ipv4() { 32 } else { 128 };
    if bits <= most { Ok((base, bits)) } else { Err(wrong()) }
}

fn contains((base, bits): (IpAddr, u32), address: IpAddr) -> bool {
    match (base, address) {
        (IpAddr::V4(base), IpAddr::V4(address)) => {
            let differ = base.to_bits() ^ address.to_bits();
            differ.leading_zeros() >= bits
        }
        (IpAddr::V6(base), IpAddr::V6(address)) => {
            let differ = base.to_bits() ^ address.to_bits();
            differ.leading_zeros() >= bits
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> IdentitySettings {
        let list = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect();
        IdentitySettings {
            ca_certificate: "/ca.crt".into(),
            ca_key: "/ca.key".into(),
            ttl_seconds_max: 100_000,
            organizational_unit_prefixes: list(&["app:", "space:"]),
            dns_suffixes: list(&["apps.internal"]),
            ip_networks: list(&["10.1.0.0/16", "fd00::/8"]),
            spiffe_trust_domains: list(&["cell.example"]),
            ..IdentitySettings::default()
        }
    }

    fn names(units: &[&str], dns: &[&str], ips: &[&str], spiffe: &str) -> IdentityNames {
        let list = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect();
        IdentityNames {
            organizational_units: list(units),
            dns_names: list(dns),
            ip_addresses: list(ips),
            spiffe_id: spiffe.to_owned(),
        }
    }

    #[test]
    fn allowed_identity_names_pass() {
        let names = names(
            &["app:1", "space:2"],
            &["apps.internal", "a.b.apps.internal", "*.x.apps.internal"],
            &["10.1.255.1", "fd12::1"],
            "spiffe://cell.example/app/1",
        );
        assert_eq!(settings().evaluate("c1", &names, Some(10)), []);
        assert_eq!(settings().evaluate("c1", &IdentityNames::default(), None), []);
    }

    /// All violations are reported together, each with its field.
    #[test]
    fn names_outside_settings_are_refused() {
        let names = names(
            &["app:1", "org:1", "app:1", "app:\n"],
            &["internal", "xapps.internal", "a..apps.internal", "A.apps.internal", "apps.internal."],
            &["10.2.0.1", "::1", "10.1", "::ffff:10.1.0.1"],
            "spiffe://other.example/x",
        );
        let found = settings().evaluate(&"c".repeat(65), &names, Some(9));
        let fields: Vec<&str> = found.iter().map(|one| &*one.field).collect();
        let expected = [
            "id",
            "identity.ttl",
            "identity.organizational_units[1]",
            "identity.organizational_units[2]",
            "identity.organizational_units[3]",
            "identity.dns_names[0]",
            "identity.dns_names[1]",
            "identity.dns_names[2]",
            "identity.dns_names[3]",
            "identity.dns_names[4]",
            "identity.ip_addresses[0]",
            "identity.ip_addresses[1]",
            "identity.ip_addresses[2]",
            "identity.ip_addresses[3]",
            "identity.spiffe_id",
        ];
        assert_eq!(fields, expected);
        let many: Vec<String> = (0..33).map(|number| format!("app:{number}")).collect();
        let many = IdentityNames { organizational_units: many, ..IdentityNames::default() };
        assert_eq!(settings().evaluate("c", &many, None)[0].field, "identity.organizational_units");
        let off = IdentitySettings::default().evaluate("c", &IdentityNames::default(), None);
        assert_eq!((off.len(), &*off[0].field), (1, "identity"));
        let closed = IdentitySettings { organizational_unit_prefixes: Vec::new(), ..settings() };
        let one = IdentityNames { organizational_units: vec!["app:1".into()], ..IdentityNames::default() };
        assert_eq!(closed.evaluate("c", &one, None).len(), 1, "an empty list allows nothing");
    }

    #[test]
    fn unit_with_delimiter_is_refused() {
        let evaluate = |unit: String| settings().evaluate("c1", &names(&[&unit], &[], &[], ""), None);
        for c in UNIT_DELIMITERS.chars().chain(['\n', '\u{9b}', '\u{61c}', '\u{202e}', '\u{2066}', '\u{2029}']) {
            let found = evaluate(format!("app:1{c}OU=admin"));
            let [one] = &found[..] else { panic!("{c:?}: {found:?}") };
            assert_eq!((&*one.field, one.reason), ("identity.organizational_units[0]", InvalidCharacter));
            assert!(one.description.contains(&format!("{c:?}")), "{c:?}: {}", one.description);
            let prefix = IdentitySettings { organizational_unit_prefixes: vec![format!("app{c}")], ..settings() };
            assert_eq!(
                prefix.check().map_err(|bad| bad.key),
                Err("identity.organizational_unit_prefixes".into()),
                "{c:?}"
            );
        }
        assert_eq!(evaluate("app:größe 1-2_3.4@5'(6)".into()), []);
    }

    #[test]
    fn spiffe_id_syntax_follows_standard() {
        assert_eq!(trust_domain("spiffe://a.b/c"), Ok("a.b"));
        for bad in [
            "spiffe://a.b",
            "spiffe://a.b/",
            "spiffe://a.b/c/",
            "spiffe://a.b//c",
            "spiffe://a.b/../c",
            "spiffe://A.b/c",
            "spiffe://a.b:1/c",
            "spiffe://u@a.b/c",
            "spiffe://a.b/c?d",
            "spiffe://a.b/c#d",
            "spiffe:///c",
            "https://a.b/c",
            &format!("spiffe://a.b/{}", "c".repeat(2048)),
        ] {
            assert!(trust_domain(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn invalid_identity_settings_are_reported_by_key() {
        assert_eq!(IdentitySettings::default().check().map_err(|bad| bad.key), Ok(()));
        assert_eq!(settings().check().map_err(|bad| bad.key), Ok(()));
        let table = [
            (IdentitySettings { ca_key: PathBuf::new(), ..settings() }, "identity.ca_key"),
            (IdentitySettings { ca_certificate: PathBuf::new(), ..settings() }, "identity.ca_certificate"),
            (IdentitySettings { ca_key: "ca.key".into(), ..settings() }, "identity.ca_key"),
            (IdentitySettings { directory: "etc".into(), ..settings() }, "identity.directory"),
            (IdentitySettings { directory: "/etc/../x".into(), ..settings() }, "identity.directory"),
            (IdentitySettings { ttl_seconds: 9, ..settings() }, "identity.ttl_seconds"),
            (IdentitySettings { ttl_seconds: 100_001, ..settings() }, "identity.ttl_seconds"),
            (IdentitySettings { ttl_seconds_max: TTL_MAX + 1, ..settings() }, "identity.ttl_seconds_max"),
            (IdentitySettings { key_name: "a/b".into(), ..settings() }, "identity.key_name"),
            (IdentitySettings { chain_name: "instance.key".into(), ..settings() }, "identity.chain_name"),
            (IdentitySettings { dns_suffixes: vec![".a".into()], ..settings() }, "identity.dns_suffixes"),
            (IdentitySettings { ip_networks: vec!["10.0.0.0/33".into()], ..settings() }, "identity.ip_networks"),
            (
                IdentitySettings { spiffe_trust_domains: vec!["spiffe://a".into()], ..settings() },
                "identity.spiffe_trust_domains",
            ),
        ];
        for (settings, key) in table {
            assert_eq!(settings.check().map_err(|bad| bad.key), Err(key.to_owned()));
        }
    }
}
