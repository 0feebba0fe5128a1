//! Logins of workloads: tokens with which workloads authenticate at providers with `auth = "jwt"` (rule G19 of
//! docs/guides/cri-rules.md).
//!
//! A token is only in memory and is overwritten on drop. The container owns the login. A provider that has opened a
//! session with the token closes the session after the last owner has dropped the login.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use executor_sys::mutex::locked;
use zeroize::Zeroizing;

/// A token for a provider, and the role of the login.
pub struct WorkloadToken {
    /// Name of the provider.
    pub provider: String,
    pub token: Zeroizing<String>,
    /// Role of the login; the provider's default role if empty.
    pub role: String,
}

/// Login of a workload at one provider.
pub struct Login {
    pub(crate) role: String,
    token: Mutex<Arc<Zeroizing<String>>>,
}

impl Login {
    /// Returns the newest token.
    pub(crate) fn token(&self) -> Arc<Zeroizing<String>> {
        Arc::clone(&locked(&self.token))
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("role", &self.role).finish_non_exhaustive()
    }
}

/// Logins of one workload, by the name of the provider.
#[derive(Debug, Default)]
pub struct WorkloadLogins(Mutex<BTreeMap<String, Arc<Login>>>);

impl WorkloadLogins {
    /// Adds a login. Replaces another login at the same provider.
    pub fn insert(&self, WorkloadToken { provider, token, role }: WorkloadToken) {
        let login = Login { role, token: Mutex::new(Arc::new(token)) };
        locked(&self.0).insert(provider, Arc::new(login));
    }

    /// Moves all logins of `new` into this object. A login with the same provider and role only gets the new token, and
    /// keeps its session. Returns true if `new` has a login.
    pub fn merge(&self, new: &Self) -> bool {
        let new = std::mem::take(&mut *locked(&new.0));
        let mut logins = locked(&self.0);
        let has_new = !new.is_empty();
        for (provider, new) in new {
            match logins.get(&provider).filter(|login| login.role == new.role) {
                Some(login) => *locked(&login.token) = new.token(),
                None => drop(logins.insert(provider, new)),
            }
        }
        has_new
    }

    /// Returns the login at a provider.
    pub fn get(&self, provider: &str) -> Option<Arc<Login>> {
        locked(&self.0).get(provider).cloned()
    }

    /// Drops all logins.
    pub fn clear(&self) {
        locked(&self.0).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logins(token: &str, role: &str) -> WorkloadLogins {
        let logins = WorkloadLogins::default();
        let token = Zeroizing::new(token.into());
        logins.insert(WorkloadToken { provider: "vault".into(), token, role: role.into() });
        logins
    }

    #[test]
    fn login_survives_new_token() {
        let all = WorkloadLogins::default();
        assert!(all.merge(&logins("canary-1", "app")));
        let login = all.get("vault").unwrap();
        assert!(all.merge(&logins("canary-2", "app")) && !all.merge(&WorkloadLogins::default()));
        assert!(Arc::ptr_eq(&login, &all.get("vault").unwrap()));
        assert_eq!(**login.token(), "canary-2");
        assert!(all.merge(&logins("canary-2", "other")));
        assert!(!Arc::ptr_eq(&login, &all.get("vault").unwrap()), "another role has its own login");
        assert!(all.get("other").is_none() && !format!("{all:?}").contains("canary"), "{all:?}");
        let weak = Arc::downgrade(&login);
        drop(login);
        assert!(weak.upgrade().is_none());
        all.clear();
        assert!(all.get("vault").is_none());
    }
}
