//! Rules that can be reloaded while the daemon serves: callers over TCP, and grants of secret providers.
//!
//! The rules come from the configuration file. Connections and periodically fetched references subscribe to [`Rules`]
//! and are checked again after each change.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use executor_providers::Grant;
use executor_transport::tls::CertificatePolicy;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::callers::{Callers, Identity, Named};
use super::{Client, TABLE, unknown_method};
use crate::api_error::{ApiError, Kind};

/// Maximum number of groups, including the effective group, that are recorded for a requester.
const GROUPS_MAX: usize = 64;
/// Maximum total size of the names that are recorded for a requester, in bytes.
const NAMES_BYTES_MAX: usize = 4096;

/// The rules of one version of the configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    /// Callers over TCP.
    pub callers: Callers,
    /// Grants by provider name.
    pub grants: BTreeMap<String, Vec<Grant>>,
}

impl RuleSet {
    /// Returns the provider's shortest path that covers `path` and is granted to the requester, if any.
    pub(crate) fn covering(&self, requester: &Requester, provider: &str, path: &str) -> Option<&str> {
        let grants = self.grants.get(provider).into_iter().flatten().filter(|grant| requester.is_named_by(grant));
        grants.filter_map(|grant| grant.covering(path)).min_by_key(|rule| rule.len())
    }

    /// Returns the provider's shortest path that covers `path` and is granted to any requester, if any.
    pub(crate) fn covering_any(&self, provider: &str, path: &str) -> Option<&str> {
        let grants = self.grants.get(provider).into_iter().flatten();
        grants.filter_map(|grant| grant.covering(path)).min_by_key(|rule| rule.len())
    }
}

/// The current rules, replaced on reload.
#[derive(Debug)]
pub struct Rules(watch::Sender<Arc<RuleSet>>);

impl Rules {
    /// Creates the current rules from an initial rule set.
    pub fn new(rules: RuleSet) -> Self {
        Self(watch::Sender::new(Arc::new(rules)))
    }

    pub fn current(&self) -> Arc<RuleSet> {
        Arc::clone(&self.0.borrow())
    }

    /// Subscribes to later changes of the rules.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<RuleSet>> {
        self.0.subscribe()
    }

    /// Replaces the rules. Returns true if they changed.
    pub(crate) fn replace(&self, rules: RuleSet) -> bool {
        self.0.send_if_modified(|current| {
            let differs = **current != rules;
            if differs {
                *current = Arc::new(rules);
            }
            differs
        })
    }
}

impl CertificatePolicy for Rules {
    type Caller = Caller;

    fn identify(self: &Arc<Self>, certificate: &[u8]) -> Result<Caller, String> {
        let identity = Identity::from_certificate(certificate)
            .map_err(|error| format!("the caller's certificate is malformed: {error}"))?;
        let shown = identity.to_string();
        Caller::new(identity, self)
            .ok_or_else(|| format!("no entry of [[callers]] matches the caller's certificate ({shown})"))
    }
}

/// A caller over TCP, checked against the current rules at each call.
#[derive(Clone, Debug)]
pub struct Caller {
    identity: Arc<Identity>,
    /// Hash of the identity. Connections with the same hash share the limits of one caller.
    pub(crate) number: u32,
    /// Methods that were allowed when the connection was accepted.
    methods: Arc<BTreeSet<&'static str>>,
    rules: Arc<Rules>,
}

impl Caller {
    /// Creates a caller for an identity; `None` if no `[[callers]]` entry matches the identity.
    pub(crate) fn new(identity: Identity, rules: &Arc<Rules>) -> Option<Self> {
        let methods = Arc::new(rules.current().callers.methods(&identity)?);
        Some(Self { number: identity.number(), identity: Arc::new(identity), methods, rules: Arc::clone(rules) })
    }

    /// Checks that the caller may call a method.
    ///
    /// # Errors
    /// Returns an error if no `[[callers]]` entry that matches the caller allows the method.
    pub(crate) fn check(&self, method: &str) -> Result<(), ApiError> {
        if self.rules.current().callers.permits(&self.identity, method) {
            return Ok(());
        }
        let why = match TABLE.iter().find(|(name, _)| *name == method) {
            Some((name, _)) => format!("the caller ({self}) may not call {name}: no entry of [[callers]] allows it"),
            None if self.rules.current().callers.methods(&self.identity).is_some() => {
                return Err(unknown_method(format_args!("the caller ({self})")));
            }
            None => format!("the caller ({self}) called a method that is not served"),
        };
        Err(ApiError::new(Kind::Denied, why))
    }

    /// Checks that the current rules still allow every method that was allowed when the connection was accepted.
    /// Otherwise the connection must be closed, because calls to a method that is no longer allowed may be in progress.
    ///
    /// # Errors
    /// Returns the reason if the connection must be closed.
    pub(crate) fn check_permission(&self) -> Result<(), String> {
        let Some(now) = self.rules.current().callers.methods(&self.identity) else {
            return Err("no entry of [[callers]] matches the caller's certificate any longer".to_owned());
        };
        match self.methods.difference(&now).next() {
            Some(method) => Err(format!("no entry of [[callers]] allows the caller to call {method} any longer")),
            None => Ok(()),
        }
    }

    /// Subscribes to later changes of the rules.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<RuleSet>> {
        self.rules.subscribe()
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.identity.fmt(f)
    }
}

/// Client that submitted a secret reference, with the credentials that grants are matched against.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Requester {
    /// A process on this host.
    Local {
        /// Effective user id.
        uid: u32,
        /// Effective group id, followed by the supplementary groups.
        groups: Vec<u32>,
    },
    /// A caller over TCP.
    Remote(Identity),
}

impl Requester {
    pub(crate) fn new(client: &Client) -> Self {
        match client {
            Client::Local(_, peer) => {
                let groups = std::iter::once(peer.gid).chain(peer.groups.iter().copied()).collect();
                Self::Local { uid: peer.uid, groups }
            }
            Client::Remote(caller) => Self::Remote((*caller.identity).clone()),
        }
    }

    /// Returns the owner for quota accounting: a user without its groups, or an identity. Returns `None` for host root,
    /// which has no quota.
    pub(crate) fn owner(self) -> Option<Self> {
        match self {
            Self::Local { uid: 0, .. } => None,
            Self::Local { uid, .. } => Some(Self::Local { uid, groups: Vec::new() }),
            // All identities with too many bytes of names become the empty identity, and share one quota.
            Self::Remote(_) => Some(self.bounded()),
        }
    }

    /// Limits the size of the requester for a record. Drops excess groups, and drops all names if their total size is
    /// too large. A rule that requires a dropped group or name does not match.
    pub(crate) fn bounded(mut self) -> Self {
        match &mut self {
            Self::Local { groups, .. } => groups.truncate(GROUPS_MAX),
            // Drop all names and not only some: with fewer names more rules could match, because a SPIFFE ID must be
            // the only URI of its certificate.
            Self::Remote(identity) if identity.bytes() > NAMES_BYTES_MAX => *identity = Identity::default(),
            Self::Remote(_) => {}
        }
        self
    }

    /// Returns true if the grant names this requester: a process by its credentials, a caller over TCP by its
    /// certificate.
    fn is_named_by(&self, grant: &Grant) -> bool {
        let Grant { uid, gid, uri, dns, cn, ou, .. } = grant;
        match self {
            Self::Local { uid: is, groups } => {
                !grant.is_to_certificates()
                    && uid.is_none_or(|uid| uid == *is)
                    && gid.is_none_or(|gid| groups.contains(&gid))
            }
            Self::Remote(identity) => {
                let named = Named { uri: uri.clone(), dns: dns.clone(), cn: cn.clone(), ou: ou.clone() };
                grant.is_to_certificates() && named.matches(identity)
            }
        }
    }
}

impl fmt::Display for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local { uid, .. } => write!(f, "uid {uid}"),
            Self::Remote(identity) => identity.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use executor_sys::peer::Peer;

    use super::super::callers::CallerRule;
    use super::super::{Access, Socket};
    use super::*;

    fn local(uid: u32, gid: u32, groups: Vec<u32>) -> Requester {
        let access = Access { own_uid: Some(7), group: None };
        Requester::new(&Client::Local(Socket::Main(access), Peer { uid, gid, groups }))
    }

    fn rep() -> Identity {
        Identity { common_names: vec!["rep".to_owned()], units: vec!["a".to_owned()], ..Identity::default() }
    }

    fn entry(cn: &str, methods: &[&'static str]) -> CallerRule {
        CallerRule { named: Named { cn: Some(cn.to_owned()), ..Named::default() }, methods: methods.to_vec() }
    }

    fn for_callers(entries: Vec<CallerRule>) -> RuleSet {
        RuleSet { callers: Callers(entries), ..RuleSet::default() }
    }

    fn grant(change: impl FnOnce(&mut Grant)) -> Grant {
        let mut grant =
            Grant { uid: None, gid: None, uri: None, dns: None, cn: None, ou: None, paths: vec!["/".to_owned()] };
        change(&mut grant);
        grant
    }

    /// A rule for processes does not match certificates, and a rule for certificates does not match processes.
    #[test]
    fn grant_matches_its_kind_of_requester() {
        let root = grant(|grant| grant.uid = Some(0));
        let both = grant(|grant| (grant.uid, grant.gid) = (Some(0), Some(50)));
        let named = grant(|grant| (grant.cn, grant.ou) = (Some("rep".to_owned()), Some("a".to_owned())));
        let other = grant(|grant| (grant.cn, grant.ou) = (Some("rep".to_owned()), Some("b".to_owned())));
        let (process, caller) = (local(0, 0, vec![50]), Requester::Remote(rep()));
        assert!(process.is_named_by(&root) && process.is_named_by(&both) && !local(1, 0, vec![50]).is_named_by(&root));
        assert!(caller.is_named_by(&named) && !caller.is_named_by(&other));
        assert!(!caller.is_named_by(&root) && !caller.is_named_by(&both) && !process.is_named_by(&named));
    }

    #[test]
    fn oversized_requester_loses_what_does_not_fit() {
        let many = local(5, 6, (100..1000).collect()).bounded();
        assert!(many.is_named_by(&grant(|grant| grant.gid = Some(6))), "the effective group stays");
        assert!(!many.is_named_by(&grant(|grant| grant.gid = Some(999))));
        let uris = vec!["spiffe://a".to_owned(), format!("spiffe://{}", "b".repeat(NAMES_BYTES_MAX))];
        let large = Requester::Remote(Identity { uris, ..rep() }).bounded();
        assert_eq!(large, Requester::Remote(Identity::default()));
        assert_eq!(Requester::Remote(rep()).bounded(), Requester::Remote(rep()), "control failed");
    }

    #[test]
    fn owner_is_a_user_or_an_identity() {
        assert_eq!(local(0, 7, vec![7]).owner(), None);
        assert_eq!(local(7, 0, vec![1]).owner(), local(7, 3, vec![2]).owner());
        assert_ne!(local(7, 0, Vec::new()).owner(), local(8, 0, Vec::new()).owner());
        let other = Identity { units: vec!["b".to_owned()], ..rep() };
        assert_eq!(Requester::Remote(rep()).owner(), Some(Requester::Remote(rep())));
        assert_ne!(Requester::Remote(rep()).owner(), Requester::Remote(other).owner());
    }

    #[test]
    fn caller_follows_the_rules_in_force() {
        let (get, stop) = ("/executor.v1.Executor/Get", "/executor.v1.Executor/Stop");
        let rules = Arc::new(Rules::new(for_callers(vec![entry("rep", &[get, stop])])));
        let caller = Caller::new(rep(), &rules).unwrap();
        let mut changes = caller.subscribe();
        assert!(!rules.replace(for_callers(vec![entry("rep", &[get, stop])])), "the same rules are no change");
        assert!(!changes.has_changed().unwrap() && caller.check(stop).is_ok());
        assert!(rules.replace(for_callers(vec![entry("x", &[]), entry("rep", &[stop]), entry("rep", &[get])])));
        assert!(
            changes.has_changed().unwrap() && caller.check_permission().is_ok(),
            "the same methods in other entries"
        );
        changes.mark_unchanged();
        rules.replace(for_callers(vec![entry("rep", &[get])]));
        assert!(caller.check(get).is_ok() && caller.check(stop).is_err());
        assert!(caller.check_permission().unwrap_err().contains(stop));
        assert_eq!(caller.check("/executor.v1.Executor/Newer").unwrap_err().kind, Kind::Unimplemented);
        rules.replace(for_callers(vec![entry("x", &[get])]));
        assert_eq!(caller.check("/executor.v1.Executor/Newer").unwrap_err().kind, Kind::Denied);
        assert!(caller.check(get).is_err() && changes.has_changed().unwrap());
        assert!(caller.check_permission().unwrap_err().contains("no entry of [[callers]] matches"));
        assert!(Caller::new(rep(), &rules).is_none());
    }
}
