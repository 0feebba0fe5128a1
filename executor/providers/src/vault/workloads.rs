//! Sessions of workloads at a server. A session is closed after the workload has dropped its login.

use std::sync::{Arc, Mutex, Weak};

use executor_sys::mutex::locked;

use crate::login::Login;

/// A client of the server: executord itself, or a workload.
#[derive(Debug)]
pub(super) struct Caller<S> {
    pub(super) session: Arc<S>,
    /// Login of the workload; `None` for executord.
    pub(super) login: Option<Arc<Login>>,
}

#[derive(Debug)]
struct Workload<S> {
    login: Weak<Login>,
    session: Arc<S>,
}

/// All workloads that have used the server, each with a session of the type `S`.
#[derive(Debug, Default)]
pub(super) struct Workloads<S>(Mutex<Vec<Workload<S>>>);

impl<S: Default> Workloads<S> {
    /// Returns the caller for a login. Two callers for one login share a session.
    pub(super) fn caller(&self, login: &Arc<Login>) -> Caller<S> {
        let mut all = locked(&self.0);
        let known = all.iter().find(|one| std::ptr::eq(one.login.as_ptr(), Arc::as_ptr(login)));
        let session = match known {
            Some(one) => Arc::clone(&one.session),
            None => {
                let session = Arc::<S>::default();
                all.push(Workload { login: Arc::downgrade(login), session: Arc::clone(&session) });
                session
            }
        };
        Caller { session, login: Some(Arc::clone(login)) }
    }

    /// Returns all workloads. The logins are weak, so that a token is freed with its workload.
    pub(super) fn all(&self) -> Vec<(Weak<Login>, Arc<S>)> {
        locked(&self.0).iter().map(|one| (Weak::clone(&one.login), Arc::clone(&one.session))).collect()
    }

    /// Removes the sessions of workloads that have dropped their logins, and returns them.
    pub(super) fn take_ended(&self) -> Vec<Arc<S>> {
        let mut all = locked(&self.0);
        all.extract_if(.., |one| one.login.strong_count() == 0).map(|one| one.session).collect()
    }
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;
    use crate::login::{WorkloadLogins, WorkloadToken};

    #[test]
    fn sessions_end_with_logins() {
        let (workloads, logins) = (Workloads::<()>::default(), WorkloadLogins::default());
        let provider = "vault".to_owned();
        logins.insert(WorkloadToken { provider, token: Zeroizing::new("a".into()), role: String::new() });
        let login = logins.get("vault").unwrap();
        let [first, second] = [workloads.caller(&login), workloads.caller(&login)];
        assert!(Arc::ptr_eq(&first.session, &second.session));
        drop((first.login, second.login, login));
        assert_eq!((workloads.all().len(), workloads.take_ended().len()), (1, 0));
        logins.clear();
        assert!(workloads.all()[0].0.upgrade().is_none());
        assert_eq!((workloads.take_ended().len(), workloads.all().len()), (1, 0));
        assert!(workloads.take_ended().is_empty());
    }
}
