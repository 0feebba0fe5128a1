//! Identities in certificates, and the methods that `[[callers]]` entries allow them.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

/// Maximum number of characters of an identity in a log line or an error.
const SHOWN_MAX: usize = 200;
/// Maximum number of names of one kind that are read from a certificate.
const NAMES_MAX: usize = 64;

/// Identities in a verified certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Identity {
    /// URI subject alternative names, which include SPIFFE IDs.
    pub uris: Vec<String>,
    /// DNS subject alternative names.
    pub dns: Vec<String>,
    /// Common names of the subject.
    pub common_names: Vec<String>,
    /// Organizational units of the subject.
    pub units: Vec<String>,
}

impl Identity {
    /// Reads the identities of a DER certificate.
    ///
    /// # Errors
    /// Returns a message if the certificate is malformed.
    pub(crate) fn from_certificate(certificate: &[u8]) -> Result<Self, String> {
        let (_, certificate) = X509Certificate::from_der(certificate).map_err(|error| error.to_string())?;
        let mut found = Self::default();
        if let Some(names) = certificate.subject_alternative_name().map_err(|error| error.to_string())? {
            for name in &names.value.general_names {
                match name {
                    GeneralName::URI(uri) => found.uris.push((*uri).to_owned()),
                    GeneralName::DNSName(name) => found.dns.push((*name).to_owned()),
                    _ => {}
                }
            }
        }
        let subject = certificate.subject();
        let texts =
            |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| attribute.as_str().ok().map(str::to_owned);
        found.common_names = subject.iter_common_name().filter_map(texts).collect();
        found.units = subject.iter_organizational_unit().filter_map(texts).collect();
        for names in [&mut found.uris, &mut found.dns, &mut found.common_names, &mut found.units] {
            names.truncate(NAMES_MAX);
        }
        Ok(found)
    }

    /// Returns a hash of the identity, stable until the process exits. The hash key is random: two identities may
    /// collide by chance, but no caller can force a collision.
    pub(crate) fn number(&self) -> u32 {
        static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        KEY.hash_one(self) as u32
    }

    /// Returns the total size of all names, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        [&self.uris, &self.dns, &self.common_names, &self.units].into_iter().flatten().map(String::len).sum()
    }

    fn is_empty(&self) -> bool {
        [&self.uris, &self.dns, &self.common_names, &self.units].iter().all(|names| names.is_empty())
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("no identity");
        }
        let kinds = [("uri", &self.uris), ("dns", &self.dns), ("cn", &self.common_names), ("ou", &self.units)];
        let words = kinds.iter().flat_map(|(kind, names)| names.iter().map(move |name| format!("{kind} {name:?}")));
        let text = words.collect::<Vec<_>>().join(", ");
        match text.char_indices().nth(SHOWN_MAX) {
            Some((at, _)) => write!(f, "{}...", &text[..at]),
            None => f.write_str(&text),
        }
    }
}

/// Identities that a rule requires; the certificate must have all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// URI. A SPIFFE ID matches only if it is the certificate's only URI (X509-SVID, section 2).
    pub uri: Option<String>,
    /// DNS name, compared case-insensitively.
    pub dns: Option<String>,
    /// Common name of the subject.
    pub cn: Option<String>,
    /// Organizational unit of the subject.
    pub ou: Option<String>,
}

/// A `[[callers]]` entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallerRule {
    /// Identities that the certificate must have.
    pub named: Named,
    /// Paths of the allowed methods.
    pub methods: Vec<&'static str>,
}

impl Named {
    /// Returns true if the identity has every name of the rule.
    pub(crate) fn matches(&self, identity: &Identity) -> bool {
        let has =
            |wanted: &Option<String>, names: &[String]| wanted.as_ref().is_none_or(|wanted| names.contains(wanted));
        let named = [&self.uri, &self.dns, &self.cn, &self.ou].iter().any(|wanted| wanted.is_some());
        let dns =
            self.dns.as_ref().is_none_or(|wanted| identity.dns.iter().any(|name| name.eq_ignore_ascii_case(wanted)));
        let is_spiffe = self.uri.as_ref().is_some_and(|uri| uri.starts_with("spiffe://"));
        named
            && dns
            && (!is_spiffe || identity.uris.len() == 1)
            && has(&self.uri, &identity.uris)
            && has(&self.cn, &identity.common_names)
            && has(&self.ou, &identity.units)
    }
}

/// All `[[callers]]` entries of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Callers(pub Vec<CallerRule>);

impl Callers {
    fn matching(&self, identity: &Identity) -> impl Iterator<Item = &CallerRule> {
        self.0.iter().filter(|rule| rule.named.matches(identity))
    }

    /// Returns all methods that the matching entries allow; `None` if no entry matches.
    pub(crate) fn methods(&self, identity: &Identity) -> Option<BTreeSet<&'static str>> {
        self.matching(identity).next()?;
        Some(self.matching(identity).flat_map(|rule| rule.methods.iter().copied()).collect())
    }

    /// Returns true if an entry that matches the identity allows the method.
    pub(crate) fn permits(&self, identity: &Identity, method: &str) -> bool {
        self.matching(identity).any(|rule| rule.methods.contains(&method))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::rules::{Caller, RuleSet, Rules};
    use super::super::sets;
    use super::*;
    use crate::api_error::Kind;

    fn identity(certificate: &rcgen::CertificateParams) -> Identity {
        let key = rcgen::KeyPair::generate().unwrap();
        Identity::from_certificate(certificate.self_signed(&key).unwrap().der()).unwrap()
    }

    fn diego() -> Identity {
        let mut params = rcgen::CertificateParams::new(vec!["rep.service.internal".to_owned()]).unwrap();
        params.subject_alt_names.push(rcgen::SanType::URI("spiffe://cell/rep".try_into().unwrap()));
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, "rep");
        params.distinguished_name.push(rcgen::DnType::OrganizationalUnitName, "organization:a");
        identity(&params)
    }

    #[test]
    fn identities_are_read_from_certificates() {
        let found = diego();
        assert_eq!(
            found.to_string(),
            r#"uri "spiffe://cell/rep", dns "rep.service.internal", cn "rep", ou "organization:a""#
        );
        let mut none = rcgen::CertificateParams::new(Vec::new()).unwrap();
        none.distinguished_name = rcgen::DistinguishedName::new();
        assert_eq!(identity(&none).to_string(), "no identity");
        assert!(Identity::from_certificate(b"no certificate").is_err());
    }

    /// A certificate that names two workloads is rejected (X509-SVID, section 2). Other URIs have no such rule.
    #[test]
    fn spiffe_id_must_be_only_uri() {
        let of = |uris: &[&str]| Identity {
            uris: uris.iter().map(|uri| (*uri).to_owned()).collect(),
            ..Identity::default()
        };
        let is = |uri: &str, uris: &[&str]| Named { uri: Some(uri.to_owned()), ..Named::default() }.matches(&of(uris));
        assert!(is("spiffe://cell/rep", &["spiffe://cell/rep"]));
        assert!(!is("spiffe://cell/rep", &["spiffe://cell/rep", "spiffe://cell/other"]));
        assert!(!is("spiffe://cell/rep", &["https://cell/rep", "spiffe://cell/rep"]));
        assert!(is("https://cell/rep", &["https://cell/rep", "https://cell/other"]));
    }

    #[test]
    fn caller_entries_need_all_identities_and_combine() {
        let some = |text: &str| Some(text.to_owned());
        let named = |named: Named, methods: &str| CallerRule { named, methods: sets::methods(methods).unwrap() };
        let rules = |entries: Vec<CallerRule>| RuleSet { callers: Callers(entries), ..RuleSet::default() };
        let callers = |entries| Caller::new(diego(), &Arc::new(Rules::new(rules(entries))));
        assert!(
            callers(vec![named(Named::default(), "read")]).is_none(),
            "an entry without an identity matches no caller"
        );
        let by_dns = named(Named { dns: some("REP.service.internal"), ..Named::default() }, "read");
        let by_both = named(
            Named { cn: some("rep"), ou: some("organization:a"), ..Named::default() },
            "executor.v1.Executor/Stop",
        );
        let by_other = named(Named { cn: some("rep"), ou: some("organization:b"), ..Named::default() }, "admin");
        let by_case = named(Named { uri: some("spiffe://cell/REP"), ..Named::default() }, "admin");
        assert!(callers(vec![by_other.clone(), by_case.clone()]).is_none());
        let caller = callers(vec![by_other, by_dns, by_case, by_both]).unwrap();
        let same = callers(vec![named(Named { cn: some("rep"), ..Named::default() }, "read")]).unwrap();
        assert_eq!(caller.number, same.number, "the number depends on the identity, not on the entries");
        for (method, allowed) in [("Get", true), ("Stop", true), ("Run", false), ("GetSecrets", false)] {
            let path = format!("/executor.v1.Executor/{method}");
            let checked = caller.check(&path);
            assert_eq!(checked.is_ok(), allowed, "{method}");
            if let Err(problem) = checked {
                assert!(problem.kind == Kind::Denied && problem.message.contains(&path), "{problem}");
            }
        }
        assert!(!caller.check("/x\u{1b}").unwrap_err().message.contains('\u{1b}'));
    }
}
