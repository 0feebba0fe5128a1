//! Which containers there are, and what they hold of the host's capacity.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use executor_core::capacity::{Account, Amount, Exhausted};
use executor_core::ident::ContainerId;

use crate::container::Handle;
use crate::container::facts::Facts;
use crate::locked;

/// All containers by id, and the account of what they hold. One lock guards both, so that an id and its capacity
/// are taken and given back together.
#[derive(Debug)]
pub struct Registry {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    containers: BTreeMap<ContainerId, Arc<Handle>>,
    account: Account,
}

/// What became of an admission.
#[derive(Debug)]
pub enum Admission {
    /// A new container.
    New(Arc<Handle>),
    /// The id is used already.
    Used(Arc<Handle>),
}

impl Registry {
    /// An empty registry over what the host has to give.
    pub fn new(total: Amount) -> Self {
        Self { inner: Mutex::new(Inner { containers: BTreeMap::new(), account: Account::new(total) }) }
    }

    /// The container of an id.
    pub fn get(&self, id: &ContainerId) -> Option<Arc<Handle>> {
        locked(&self.inner).containers.get(id).cloned()
    }

    /// Takes an id and capacity for a new container.
    ///
    /// # Errors
    /// There is not enough of something.
    pub fn admit(&self, facts: Facts) -> Result<Admission, Exhausted> {
        let mut inner = locked(&self.inner);
        let id = facts.plan.id.clone();
        if let Some(handle) = inner.containers.get(&id) {
            return Ok(Admission::Used(Arc::clone(handle)));
        }
        inner.account.reserve(&id, Amount::of(&facts.plan.limits))?;
        let handle = Arc::new(Handle::new(facts));
        inner.containers.insert(id, Arc::clone(&handle));
        Ok(Admission::New(handle))
    }

    /// Takes in a container that was there before this daemon. One that lives holds its capacity, whatever is left.
    /// `None` where the id is used meanwhile.
    pub fn adopt(&self, facts: Facts) -> Option<Arc<Handle>> {
        let mut inner = locked(&self.inner);
        if inner.containers.contains_key(&facts.plan.id) {
            return None;
        }
        if facts.end.is_none() {
            inner.account.adopt(&facts.plan.id, Amount::of(&facts.plan.limits));
        }
        let handle = Arc::new(Handle::new(facts));
        inner.containers.insert(handle.id().clone(), Arc::clone(&handle));
        Some(handle)
    }

    /// Gives back the capacity of a container; its record stays.
    pub fn release(&self, id: &ContainerId) {
        locked(&self.inner).account.release(id);
    }

    /// Forgets a container, and gives back what it holds.
    pub fn remove(&self, id: &ContainerId) {
        let mut inner = locked(&self.inner);
        inner.account.release(id);
        inner.containers.remove(id);
    }

    /// Containers in the order of their ids, from behind `after` on, as many as `visit` wants: until it answers
    /// false. The registry is not locked while it looks at one.
    pub fn visit(&self, after: Option<&ContainerId>, mut visit: impl FnMut(&Arc<Handle>) -> bool) {
        let mut at = after.cloned();
        loop {
            let start = at.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
            let some: Vec<Arc<Handle>> = locked(&self.inner)
                .containers
                .range((start, Bound::Unbounded))
                .take(64)
                .map(|(_, h)| Arc::clone(h))
                .collect();
            let Some(last) = some.last() else { return };
            at = Some(last.id().clone());
            if !some.iter().all(&mut visit) {
                return;
            }
        }
    }

    /// All containers.
    pub fn all(&self) -> Vec<Arc<Handle>> {
        locked(&self.inner).containers.values().cloned().collect()
    }

    /// What there is, and what is left.
    pub fn capacity(&self) -> (Amount, Amount) {
        let inner = locked(&self.inner);
        (inner.account.total(), inner.account.remaining())
    }
}
