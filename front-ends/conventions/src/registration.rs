//! Parses and validates the registrations file. All violations are reported together.
//!
//! Rules are numbered as in `docs/guides/conventions.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::endpoint::{Endpoint, Service};
use crate::files::read_bounded;
use crate::grant::Grant;
use crate::labels::is_subdomain;
use crate::selector::Selector;
use crate::violation::{Violations, shown};

/// Maximum number of registrations in a file.
pub const REGISTRATIONS_MAX: usize = 100;
/// Maximum number of selectors of a registration.
const SELECTORS_MAX: usize = 64;
/// Maximum size of a certificate bundle, in bytes.
const CA_MAX: u64 = 1 << 20;
/// Default and maximum timeout of a call, in seconds (as for Kubernetes webhooks).
const TIMEOUT: (u64, u64) = (10, 30);

/// Priority of a convention in the order of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum Priority {
    /// The convention is called before the conventions with other priorities.
    Early,
    /// The convention is called after `Early` and before `Late`.
    #[default]
    Normal,
    /// The convention is called after the conventions with other priorities.
    Late,
}

/// Object whose labels the selectors match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum SelectorTarget {
    #[default]
    PodTemplateSpec,
    /// The object that contains the template.
    PodIntent,
}

/// A convention that the operator registered.
#[derive(Clone, PartialEq, Eq)]
pub struct Registration {
    /// Name, a DNS subdomain.
    pub name: String,
    /// Address of the server.
    pub endpoint: Endpoint,
    /// The only trusted certificates (PEM); `None` to trust the certificates of the system.
    pub ca_bundle: Option<Vec<u8>>,
    /// Position in the order of calls.
    pub priority: Priority,
    /// Selectors, of which at least one must match; empty to match all templates.
    pub selectors: Vec<Selector>,
    pub selector_target: SelectorTarget,
    /// Privileges that the convention may add.
    pub grants: BTreeSet<Grant>,
    /// Timeout of one call.
    pub timeout: Duration,
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A registration as the registrations file contains it, before validation.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    name: String,
    url: Option<String>,
    service: Option<Service>,
    ca_bundle: Option<String>,
    ca_file: Option<String>,
    #[serde(default)]
    priority: Priority,
    #[serde(default)]
    selectors: Vec<Selector>,
    #[serde(default)]
    selector_target: SelectorTarget,
    #[serde(default)]
    grants: Vec<String>,
    timeout_seconds: Option<u64>,
}

/// Registrations in the order in which they are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registrations(Vec<Registration>);

impl Registrations {
    /// Parses a file. Relative paths in the file are relative to `base`.
    ///
    /// # Errors
    /// Returns all violations if the file is invalid.
    pub fn parse(text: &str, base: &Path) -> Result<Self, Violations> {
        let mut table: toml::Table =
            text.parse().map_err(|error: toml::de::Error| Violations::one(None, "", 7, located(&error, text)))?;
        let list = table.remove("convention").unwrap_or_else(|| toml::Value::Array(Vec::new()));
        let mut violations = Violations::default();
        for key in table.keys() {
            violations.add(None, shown(key), 7, "is unknown; each convention is a [[convention]]");
        }
        let toml::Value::Array(list) = list else {
            violations.add(None, "convention", 7, "is not a list; write [[convention]]");
            return Err(violations);
        };
        if list.len() > REGISTRATIONS_MAX {
            let message = format!("has {} entries; at most {REGISTRATIONS_MAX} are allowed", list.len());
            violations.add(None, "convention", 7, message);
            return Err(violations);
        }
        let mut registrations = BTreeMap::new();
        for (index, value) in list.into_iter().enumerate() {
            // For messages, the name of a registration is more useful than its index.
            let name = value.get("name").and_then(toml::Value::as_str).filter(|name| is_subdomain(name));
            let field = name.map_or_else(|| format!("convention[{index}]"), |name| format!("convention {name}"));
            match Written::deserialize(value) {
                Err(error) => violations.add(None, field, 7, one_line(error.message())),
                Ok(written) => {
                    if let Some(registration) = evaluate(written, &field, base, &mut violations)
                        && let Some(twice) = registrations.insert(registration.name.clone(), registration)
                    {
                        violations.add(None, format!("convention {}", twice.name), 9, "is registered twice");
                    }
                }
            }
        }
        let mut registrations: Vec<Registration> = registrations.into_values().collect();
        registrations.sort_by(|a, b| (a.priority, &a.name).cmp(&(b.priority, &b.name)));
        violations.or(Self(registrations))
    }

    /// Returns all registrations, in the order in which they are called (rule 9).
    pub fn iter(&self) -> std::slice::Iter<'_, Registration> {
        self.0.iter()
    }

    /// Returns true if there are no registrations.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the registrations whose selectors match, in the order in which they are called (rules 7 and 9).
    pub(crate) fn select<'a>(
        &'a self,
        template: &'a BTreeMap<String, String>,
        intent: &'a BTreeMap<String, String>,
    ) -> impl Iterator<Item = &'a Registration> {
        self.iter().filter(move |registration| {
            let labels = match registration.selector_target {
                SelectorTarget::PodTemplateSpec => template,
                SelectorTarget::PodIntent => intent,
            };
            registration.selectors.is_empty() || registration.selectors.iter().any(|selector| selector.matches(labels))
        })
    }
}

fn evaluate(written: Written, field: &str, base: &Path, violations: &mut Violations) -> Option<Registration> {
    let mut faults: Vec<(String, u8, String)> = Vec::new();
    if !is_subdomain(&written.name) {
        let why = format!("{} is not a name: use a-z, 0-9, `-` and `.`", shown(&written.name));
        faults.push(("name".into(), 3, why));
    }
    let endpoint = match (&written.url, &written.service) {
        (Some(_), Some(_)) => Err(vec![(String::new(), "has both url and service; exactly one is required".into())]),
        (None, None) => Err(vec![(String::new(), "has neither url nor service; exactly one is required".into())]),
        (Some(url), None) => Endpoint::from_url(url).map_err(|why| vec![("url".to_owned(), why)]),
        (None, Some(service)) => Endpoint::from_service(service)
            .map_err(|faults| faults.into_iter().map(|(field, why)| (format!("service.{field}"), why)).collect()),
    };
    let endpoint = endpoint.map_err(|wrong| faults.extend(wrong.into_iter().map(|(at, why)| (at, 1, why)))).ok();
    let ca_bundle = certificates(written.ca_bundle.as_deref(), written.ca_file.as_deref(), base)
        .map_err(|(field, why)| faults.push((field.to_owned(), 1, why)))
        .ok()
        .flatten();
    if written.selectors.len() > SELECTORS_MAX {
        let why = format!("has {} selectors; at most {SELECTORS_MAX} are allowed", written.selectors.len());
        faults.push(("selectors".into(), 7, why));
    }
    for (index, selector) in written.selectors.iter().take(SELECTORS_MAX).enumerate() {
        let at = |field: String| format!("selectors[{index}]{}{field}", if field.is_empty() { "" } else { "." });
        faults.extend(selector.faults().into_iter().map(|(field, why)| (at(field), 7, why)));
    }
    let mut grants = BTreeSet::new();
    for grant in written.grants.iter().take(Grant::ALL.len() * 2) {
        match grant.parse() {
            Ok(grant) => drop(grants.insert(grant)),
            Err(()) => {
                let known = Grant::ALL.map(Grant::name).join(", ");
                faults.push(("grants".into(), 13, format!("{} is not a grant; use {known}", shown(grant))));
            }
        }
    }
    let seconds = written.timeout_seconds.unwrap_or(TIMEOUT.0);
    if !(1..=TIMEOUT.1).contains(&seconds) {
        faults.push(("timeoutSeconds".into(), 15, format!("is {seconds}; it must be 1 to {}", TIMEOUT.1)));
    }
    let faultless = faults.is_empty();
    for (at, rule, why) in faults {
        violations.add(None, format!("{field}{}{at}", if at.is_empty() { "" } else { "." }), rule, why);
    }
    let endpoint = endpoint.filter(|_| faultless)?;
    Some(Registration {
        name: written.name,
        endpoint,
        ca_bundle,
        priority: written.priority,
        selectors: written.selectors,
        selector_target: written.selector_target,
        grants,
        timeout: Duration::from_secs(seconds),
    })
}

/// Returns the certificates that a registration trusts. The source is PEM, base64 of PEM (as in Kubernetes), or a PEM
/// file.
fn certificates(
    bundle: Option<&str>,
    file: Option<&str>,
    base: &Path,
) -> Result<Option<Vec<u8>>, (&'static str, String)> {
    let (field, pem) = match (bundle, file) {
        (Some(_), Some(_)) => return Err(("caBundle", "is set together with caFile; use one of them".into())),
        (None, None) => return Ok(None),
        (Some(text), None) if text.contains("-----BEGIN ") => ("caBundle", text.as_bytes().to_vec()),
        (Some(text), None) => {
            let packed: String = text.split_ascii_whitespace().collect();
            let pem = STANDARD.decode(packed).map_err(|_| ("caBundle", "is neither PEM nor PEM in base64".into()))?;
            ("caBundle", pem)
        }
        (None, Some(file)) => {
            let path = base.join(file);
            let read = read_bounded(&path, CA_MAX);
            ("caFile", read.map_err(|why| ("caFile", format!("{}: {why}", path.display())))?)
        }
    };
    match executor_http::count_certificates(&pem) {
        Ok(1..) => Ok(Some(pem)),
        Ok(0) => Err((field, "has no certificate in PEM".into())),
        Err(why) => Err((field, why)),
    }
}

/// Returns the parser's message with line and column, but without an excerpt of the file.
fn located(error: &toml::de::Error, text: &str) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let message = one_line(error.message());
    match before {
        Some(before) => format!("line {}: {message}", before.matches('\n').count() + 1),
        None => message,
    }
}

fn one_line(message: &str) -> String {
    message.lines().collect::<Vec<_>>().join(" ")
}
