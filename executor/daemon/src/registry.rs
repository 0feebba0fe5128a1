//! The containers by id, and the capacity of the host that they hold.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use executor_core::capacity::{Account, Amount, Exhausted};
use executor_core::ident::ContainerId;
use executor_core::lifecycle::State;

use crate::container::Handle;
use crate::facts::Facts;
use crate::locked;

/// All containers by id, and the account of the capacity that they hold. One lock guards both, so that an id and its
/// capacity are taken and given back together.
#[derive(Debug)]
pub struct Registry {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    containers: BTreeMap<ContainerId, Arc<Handle>>,
    account: Account,
}

/// Outcome of an admission.
#[derive(Debug)]
pub enum Admission {
    /// The container is new.
    New(Arc<Handle>),
    /// The id belongs to this container already.
    Used(Arc<Handle>),
    /// The pod of the container takes no members.
    PodEnds,
}

impl Inner {
    fn takes_members(&self, pod: &ContainerId) -> bool {
        let pod = self.containers.get(pod).filter(|pod| pod.is_pod() && !pod.is_closed());
        pod.is_some_and(|pod| pod.state() == Some(State::Running))
    }

    fn members(&self, pod: &ContainerId) -> Vec<Arc<Handle>> {
        let is_member = |handle: &&Arc<Handle>| handle.facts().is_some_and(|facts| facts.plan.member_of() == Some(pod));
        self.containers.values().filter(is_member).cloned().collect()
    }
}

impl Registry {
    /// Makes an empty registry over the capacity of the host.
    pub fn new(total: Amount) -> Self {
        Self { inner: Mutex::new(Inner { containers: BTreeMap::new(), account: Account::new(total) }) }
    }

    /// Returns the container of an id.
    pub fn get(&self, id: &ContainerId) -> Option<Arc<Handle>> {
        locked(&self.inner).containers.get(id).cloned()
    }

    /// Takes an id and capacity for a new container.
    ///
    /// # Errors
    /// Some capacity does not suffice.
    pub fn admit(&self, facts: Facts) -> Result<Admission, Exhausted> {
        let mut inner = locked(&self.inner);
        let id = facts.plan.id.clone();
        if let Some(handle) = inner.containers.get(&id) {
            return Ok(Admission::Used(Arc::clone(handle)));
        }
        if facts.plan.member_of().is_some_and(|pod| !inner.takes_members(pod)) {
            return Ok(Admission::PodEnds);
        }
        inner.account.reserve(&id, Amount::of(&facts.plan.limits, &facts.plan.volumes))?;
        let handle = Arc::new(Handle::new(facts));
        inner.containers.insert(id, Arc::clone(&handle));
        Ok(Admission::New(handle))
    }

    /// Takes in a container of an earlier daemon. A living one holds its capacity, whatever is left.
    /// `None` where the id has been taken since.
    pub fn adopt(&self, facts: Facts) -> Option<Arc<Handle>> {
        let mut inner = locked(&self.inner);
        if inner.containers.contains_key(&facts.plan.id) {
            return None;
        }
        if facts.end.is_none() {
            inner.account.adopt(&facts.plan.id, Amount::of(&facts.plan.limits, &facts.plan.volumes));
        }
        let handle = Arc::new(Handle::new(facts));
        inner.containers.insert(handle.id().clone(), Arc::clone(&handle));
        Some(handle)
    }

    /// Has a pod take no new members, and returns those that it has. With `idle` only where all of them are completed.
    ///
    /// # Errors
    /// The members that are not completed; nothing is changed.
    pub fn close_pod(&self, pod: &Handle, idle: bool) -> Result<Vec<Arc<Handle>>, Vec<Arc<Handle>>> {
        let inner = locked(&self.inner);
        let members = inner.members(pod.id());
        let living: Vec<Arc<Handle>> = members.iter().filter(|member| !member.is_over()).cloned().collect();
        if idle && !living.is_empty() {
            return Err(living);
        }
        pod.close();
        Ok(members)
    }

    /// Returns the members of a pod, in the order of their ids.
    pub fn members(&self, pod: &ContainerId) -> Vec<Arc<Handle>> {
        locked(&self.inner).members(pod)
    }

    /// Gives back the capacity of a container, which stays known.
    pub fn release(&self, id: &ContainerId) {
        locked(&self.inner).account.release(id);
    }

    /// Forgets a container, and gives back its capacity. `before` runs while the id is still taken and nobody can look
    /// the container up; it must not use the registry.
    pub fn remove(&self, id: &ContainerId, before: impl FnOnce()) {
        let mut inner = locked(&self.inner);
        before();
        inner.account.release(id);
        inner.containers.remove(id);
    }

    /// Calls `visit` for containers in the order of their ids, from behind `after` on, until it returns false. The
    /// registry is not locked during a call.
    pub fn visit(&self, after: Option<&ContainerId>, mut visit: impl FnMut(&Arc<Handle>) -> bool) {
        let mut at = after.cloned();
        loop {
            let start = at.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
            let some: Vec<Arc<Handle>> = locked(&self.inner)
                .containers
                .range((start, Bound::Unbounded))
                .take(64)
                .map(|(_, handle)| Arc::clone(handle))
                .collect();
            let Some(last) = some.last() else { return };
            at = Some(last.id().clone());
            if !some.iter().all(&mut visit) {
                return;
            }
        }
    }

    /// Returns all containers.
    pub fn all(&self) -> Vec<Arc<Handle>> {
        locked(&self.inner).containers.values().cloned().collect()
    }

    /// Returns the total capacity, and the remaining one.
    pub fn capacity(&self) -> (Amount, Amount) {
        let inner = locked(&self.inner);
        (inner.account.total(), inner.account.remaining())
    }
}
