//! Tracks running network checks. Each caller can have one check at a time, because a check can take a minute and the
//! launcher runs only one at a time.

use std::sync::{Mutex, PoisonError};

use crate::access::rules::Requester;
use crate::api_error::{ApiError, Kind};

/// Callers with a running network check.
#[derive(Debug, Default)]
pub struct RunningChecks(Mutex<Vec<Option<Requester>>>);

/// A caller's running network check.
pub(crate) struct RunningCheck<'a> {
    all: &'a RunningChecks,
    owner: Option<Requester>,
}

impl RunningChecks {
    /// Registers a check of a caller until the returned value is dropped. `owner` is `None` for host root.
    ///
    /// # Errors
    /// Returns an error if a check of the caller is already running.
    pub(crate) fn enter(&self, owner: Option<Requester>) -> Result<RunningCheck<'_>, ApiError> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if running.contains(&owner) {
            let why = "the caller's previous check of a network is still running; wait until it ends";
            return Err(ApiError::new(Kind::Exhausted, why));
        }
        running.push(owner.clone());
        Ok(RunningCheck { all: self, owner })
    }
}

impl Drop for RunningCheck<'_> {
    fn drop(&mut self) {
        let mut running = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|owner| *owner != self.owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caller_has_one_check() {
        let checks = RunningChecks::default();
        let user = |uid| Some(Requester::Local { uid, groups: Vec::new() });
        let first = checks.enter(user(7)).unwrap();
        assert!(matches!(checks.enter(user(7)), Err(error) if error.kind == Kind::Exhausted));
        let other = checks.enter(user(8)).unwrap();
        drop(first);
        drop((checks.enter(user(7)).unwrap(), other));
        assert!(checks.0.lock().unwrap().is_empty());
    }
}
