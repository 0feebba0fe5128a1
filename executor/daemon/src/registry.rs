//! The containers by id, and the capacity of the host that they hold.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use executor_core::capacity::{Account, Amount, Exhausted};
use executor_core::ident::ContainerId;
use executor_core::lifecycle::State;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::container::Handle;
use crate::facts::Facts;
use crate::locked;

/// Time that a request waits for the removal of what completed containers left, where it needs their capacity.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(5);

/// All containers by id, and the account of the capacity that they hold. One lock guards both, so that an id and its
/// capacity are taken and given back together.
#[derive(Debug)]
pub struct Registry {
    inner: Mutex<Inner>,
    /// Number of times that capacity was given back.
    releases: watch::Sender<u64>,
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
        let inner = Inner { containers: BTreeMap::new(), account: Account::new(total) };
        Self { inner: Mutex::new(inner), releases: watch::Sender::new(0) }
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

    /// Takes an id and capacity for a new container. Where there is not enough, but will be when what completed containers
    /// left is removed, waits for that.
    ///
    /// # Errors
    /// Some capacity does not suffice.
    pub(crate) async fn admit_when_removed(&self, facts: &Facts) -> Result<Admission, Exhausted> {
        let mut releases = self.releases.subscribe();
        let deadline = Instant::now() + REMOVAL_PATIENCE;
        loop {
            releases.mark_unchanged();
            match self.admit(facts.clone()) {
                Err(exhausted) => {
                    let waits = self.suffices_when_removed(facts);
                    if !waits || timeout_at(deadline, releases.changed()).await.is_err() {
                        return Err(exhausted);
                    }
                }
                admitted => return admitted,
            }
        }
    }

    /// True where there is enough capacity without the completed containers that still hold some.
    fn suffices_when_removed(&self, facts: &Facts) -> bool {
        let inner = locked(&self.inner);
        let mut after = inner.account.clone();
        let leaving = inner.containers.values().filter(|handle| handle.is_leaving());
        leaving.for_each(|handle| after.release(handle.id()));
        after.reserve(&facts.plan.id, Amount::of(&facts.plan.limits, &facts.plan.volumes)).is_ok()
    }

    /// Takes in a container of an earlier daemon. One that is there, or has left something, holds its capacity, whatever
    /// remains. `None` where the id has been taken since.
    pub fn adopt(&self, facts: Facts, is_removed: bool) -> Option<Arc<Handle>> {
        let mut inner = locked(&self.inner);
        if inner.containers.contains_key(&facts.plan.id) {
            return None;
        }
        if !is_removed {
            inner.account.adopt(&facts.plan.id, Amount::of(&facts.plan.limits, &facts.plan.volumes));
        }
        let handle = Arc::new(Handle::new(facts));
        if is_removed {
            handle.set_removed();
        }
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

    /// Gives back the capacity of a container, which stays known where it is. A later container of its id keeps its own.
    pub fn release(&self, handle: &Handle) {
        let mut inner = locked(&self.inner);
        if inner.containers.get(handle.id()).is_some_and(|known| std::ptr::eq(&raw const **known, handle)) {
            inner.account.release(handle.id());
        }
        drop(inner);
        handle.set_removed();
        self.releases.send_modify(|releases| *releases += 1);
    }

    /// Forgets a container, and gives back its capacity. `before` runs while the id is still taken and nobody can look
    /// the container up; it must not use the registry.
    pub fn remove(&self, id: &ContainerId, before: impl FnOnce()) {
        let mut inner = locked(&self.inner);
        before();
        inner.account.release(id);
        let removed = inner.containers.remove(id);
        drop(inner);
        removed.iter().for_each(|handle| handle.set_removed());
        self.releases.send_modify(|releases| *releases += 1);
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

    /// Returns the capacity that containers hold.
    pub fn allocated(&self) -> Amount {
        locked(&self.inner).account.allocated()
    }

    /// Returns the total capacity, and the remaining one.
    pub fn capacity(&self) -> (Amount, Amount) {
        let inner = locked(&self.inner);
        (inner.account.total(), inner.account.remaining())
    }
}
