//! The registry: all containers by id, and the host capacity that they hold.

mod reserved;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use executor_core::capacity::{Account, Amount, Exhausted};
use executor_core::ident::ContainerId;
use executor_core::lifecycle::State;
use executor_core::plan::Limits;
use executor_core::time::Timestamp;
use executor_sys::mutex::locked;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::model::container::Handle;
use crate::model::reservation::Reservation;
use crate::model::status::ContainerStatus;
use reserved::Reserved;

/// Maximum time that a request waits for the removal of completed containers whose capacity it needs.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(5);

/// All containers by id, and the capacity that they hold. One lock guards both, so that an id and its capacity are
/// reserved and released together.
#[derive(Debug)]
pub struct Registry {
    inner: Mutex<RegistryState>,
    /// Maximum amount that the reservations of one owner may hold.
    share: Amount,
    /// Incremented when capacity may have become free.
    releases: watch::Sender<u64>,
    /// Notified when a reservation was created, renewed, restored or unclaimed.
    reservations: watch::Sender<()>,
    /// Number of times that a container joined or left a network.
    networks: watch::Sender<u64>,
}

#[derive(Debug)]
struct RegistryState {
    containers: BTreeMap<ContainerId, Arc<Handle>>,
    account: Account,
    reserved: Reserved,
    /// True while no new containers or reservations are accepted.
    closed: bool,
}

/// Conditions under which a container is admitted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    /// True if there must be a reservation of the id.
    pub(crate) needs_reservation: bool,
    /// Maximum number of containers with `keep_until_deleted`.
    pub(crate) kept_max: usize,
}

#[derive(Debug)]
pub enum Admission {
    /// The container is new.
    New(Arc<Handle>),
    /// The id already belongs to this container.
    Used(Arc<Handle>),
    /// The container's pod accepts no members.
    PodUnavailable,
    /// There are as many containers with `keep_until_deleted` as the operator allows.
    TooManyKept(usize),
    /// The container needs more than its reservation holds.
    BeyondReservation(Exhausted),
    /// The request requires a reservation, but there is no reservation.
    NotReserved,
    /// No new containers are accepted.
    Closed,
}

/// Result of a request for a reservation.
#[derive(Debug)]
pub(crate) enum Reserving {
    /// The reservation is new.
    Made(Reservation),
    /// A reservation with the same resources existed and was renewed.
    Renewed(Reservation),
    /// The id belongs to a container or a pod.
    Container(ContainerId),
    /// A reservation with other resources exists.
    Different(ContainerId),
    /// The owner's reservations would exceed the maximum amount of one owner.
    BeyondShare(Exhausted),
    /// No new reservations are accepted.
    Closed,
}

/// Capacity of the host and its use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CapacityUse {
    pub(crate) total: Amount,
    /// Capacity that no container or reservation holds.
    pub(crate) remaining: Amount,
    /// Capacity held by containers and reservations.
    pub(crate) allocated: Amount,
    /// Capacity held by reservations.
    pub(crate) reserved: Amount,
    pub(crate) reservations: usize,
}

/// Returns the capacity that a container holds. The self-test's container holds no capacity, so that the self-test also
/// runs on a full node.
fn amount_of(facts: &ContainerStatus) -> Amount {
    if facts.plan.id.is_self_test() {
        return Amount::default();
    }
    Amount::new(&facts.plan.limits, &facts.plan.volumes)
}

impl RegistryState {
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
    /// Creates an empty registry for the host's capacity. The reservations of one owner hold at most `share`.
    pub fn new(total: Amount, share: Amount) -> Self {
        let inner = RegistryState {
            containers: BTreeMap::new(),
            account: Account::new(total),
            reserved: Reserved::default(),
            closed: false,
        };
        Self {
            inner: Mutex::new(inner),
            share,
            releases: watch::Sender::new(0),
            reservations: watch::Sender::new(()),
            networks: watch::Sender::new(0),
        }
    }

    pub fn get(&self, id: &ContainerId) -> Option<Arc<Handle>> {
        locked(&self.inner).containers.get(id).cloned()
    }

    /// Reserves an id and capacity for a new container. A reservation of the id is used up and passed to `matches`.
    ///
    /// # Errors
    /// Returns the resource if its capacity does not suffice.
    pub(crate) fn admit(
        &self,
        facts: ContainerStatus,
        terms: Terms,
        matches: impl FnOnce(&Reservation),
    ) -> Result<Admission, Exhausted> {
        let mut inner = locked(&self.inner);
        let id = facts.plan.id.clone();
        if let Some(handle) = inner.containers.get(&id) {
            return Ok(Admission::Used(Arc::clone(handle)));
        }
        if inner.closed {
            return Ok(Admission::Closed);
        }
        if facts.plan.member_of().is_some_and(|pod| !inner.takes_members(pod)) {
            return Ok(Admission::PodUnavailable);
        }
        if facts.plan.keep_until_deleted {
            let kept = inner.containers.values().filter(|handle| handle.is_kept_until_deleted()).count();
            if kept >= terms.kept_max {
                return Ok(Admission::TooManyKept(kept));
            }
        }
        let amount = amount_of(&facts);
        match inner.reserved.get(&id).map(|reservation| reservation.amount) {
            None if terms.needs_reservation => return Ok(Admission::NotReserved),
            None => {}
            Some(reserved) => {
                if let Err(short) = reserved.suffices_for(&amount, &reserved) {
                    return Ok(Admission::BeyondReservation(short));
                }
            }
        }
        inner.account.reserve(&id, amount)?;
        if let Some(reservation) = inner.reserved.take(&id) {
            matches(&reservation);
        }
        let handle = Arc::new(Handle::new(facts, self.networks.clone()));
        inner.containers.insert(id, Arc::clone(&handle));
        Ok(Admission::New(handle))
    }

    /// Reserves capacity for new limits of a container in addition to the capacity of the old limits, until
    /// [`Self::hold`] sets the limits in force.
    ///
    /// # Errors
    /// Returns the resource if its capacity does not suffice; the container's capacity is then unchanged.
    pub(crate) fn reserve_update(&self, facts: &ContainerStatus, limits: &Limits) -> Result<(), Exhausted> {
        let (old, new) = (amount_of(facts), Amount::new(limits, &facts.plan.volumes));
        locked(&self.inner).account.reserve(&facts.plan.id, old.most(&new))
    }

    /// Sets the held capacity to the container's limits in force, even beyond the free capacity. Has no effect if the
    /// container has released its capacity.
    pub(crate) fn hold(&self, facts: &ContainerStatus) {
        locked(&self.inner).account.change(&facts.plan.id, amount_of(facts));
        self.releases.send_modify(|releases| *releases += 1);
    }

    /// Reserves an id and capacity for a new container. If the capacity suffices only after completed containers are
    /// removed, waits for their removal.
    ///
    /// # Errors
    /// Returns the resource if its capacity does not suffice.
    pub(crate) async fn admit_when_removed(
        &self,
        facts: &ContainerStatus,
        terms: Terms,
        matches: impl Fn(&Reservation),
    ) -> Result<Admission, Exhausted> {
        let amount = amount_of(facts);
        self.when_removed(&facts.plan.id, amount, || self.admit(facts.clone(), terms, &matches)).await
    }

    /// Reserves capacity for a later container, and waits as [`Self::admit_when_removed`] does. `keep` is called under
    /// the lock with the reservation, and true if the reservation is new.
    ///
    /// # Errors
    /// Returns the resource if its capacity does not suffice.
    pub(crate) async fn reserve(
        &self,
        reservation: Reservation,
        ttl: Duration,
        keep: impl Fn(&Reservation, bool),
    ) -> Result<Reserving, Exhausted> {
        self.when_removed(&reservation.id, reservation.amount, || self.try_reserve(reservation.clone(), ttl, &keep))
            .await
    }

    fn try_reserve(
        &self,
        asked: Reservation,
        ttl: Duration,
        keep: impl FnOnce(&Reservation, bool),
    ) -> Result<Reserving, Exhausted> {
        let mut inner = locked(&self.inner);
        if inner.containers.contains_key(&asked.id) {
            return Ok(Reserving::Container(asked.id));
        }
        if inner.closed {
            return Ok(Reserving::Closed);
        }
        if let Some(owner) = &asked.owner {
            let left = self.share.minus(&inner.reserved.sum_of(owner, &asked.id));
            if let Err(short) = left.suffices_for(&asked.amount, &self.share) {
                return Ok(Reserving::BeyondShare(short));
            }
        }
        let outcome = match inner.reserved.get(&asked.id) {
            Some(there) if there.amount != asked.amount => return Ok(Reserving::Different(asked.id)),
            Some(there) => Reserving::Renewed(Reservation { created_at: there.created_at, ..asked }),
            None => {
                inner.account.reserve(&asked.id, asked.amount)?;
                Reserving::Made(asked)
            }
        };
        if let Reserving::Made(held) | Reserving::Renewed(held) = &outcome {
            inner.reserved.hold(held.clone(), ttl);
            keep(held, matches!(outcome, Reserving::Made(_)));
        }
        drop(inner);
        self.reservations.send_replace(());
        Ok(outcome)
    }

    /// Stops or resumes the admission of new containers. Containers that were admitted before are in the registry.
    pub(crate) fn set_closed(&self, closed: bool) {
        locked(&self.inner).closed = closed;
    }

    /// Restores the reservation of an earlier daemon, even beyond the free capacity.
    pub(crate) fn restore(&self, reservation: Reservation, ttl: Duration) {
        let mut inner = locked(&self.inner);
        inner.account.adopt(&reservation.id, reservation.amount);
        inner.reserved.hold(reservation, ttl);
        drop(inner);
        self.reservations.send_replace(());
    }

    pub(crate) fn reservation(&self, id: &ContainerId) -> Option<Reservation> {
        locked(&self.inner).reserved.get(id).cloned()
    }

    /// Returns all reservations, sorted by id.
    pub(crate) fn all_reservations(&self) -> Vec<Reservation> {
        locked(&self.inner).reserved.all()
    }

    /// Releases a reservation. Returns false if the id has no reservation. `before` runs while the id is still in use.
    pub(crate) fn release_reservation(&self, id: &ContainerId, before: impl FnOnce(&Reservation)) -> bool {
        let mut inner = locked(&self.inner);
        let Some(reservation) = inner.reserved.take(id) else { return false };
        before(&reservation);
        inner.account.release(id);
        drop(inner);
        self.releases.send_modify(|releases| *releases += 1);
        true
    }

    /// Removes expired reservations. `before` is called with the id of each reservation, while the id is still in use.
    pub(crate) fn expire(&self, now: Timestamp, before: impl Fn(&ContainerId)) {
        let mut inner = locked(&self.inner);
        for reservation in inner.reserved.expire(Instant::now(), now) {
            before(&reservation.id);
            inner.account.release(&reservation.id);
        }
        drop(inner);
        self.releases.send_modify(|releases| *releases += 1);
    }

    /// Returns the time at which the next reservation expires.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        locked(&self.inner).reserved.next()
    }

    /// Watches for changes of the next expiry.
    pub(crate) fn watch_reservations(&self) -> watch::Receiver<()> {
        self.reservations.subscribe()
    }

    /// Returns the time at which a reservation of this id expired, if remembered.
    pub(crate) fn expired_at(&self, id: &ContainerId) -> Option<Timestamp> {
        locked(&self.inner).reserved.expired_at(id)
    }

    /// Prevents a reservation from expiring while a Run uses it; returns false if the reservation does not exist.
    pub(crate) fn claim(&self, id: &ContainerId) -> bool {
        locked(&self.inner).reserved.claim(id)
    }

    /// Releases the claim on a reservation.
    pub(crate) fn unclaim(&self, id: &ContainerId) {
        locked(&self.inner).reserved.unclaim(id);
        self.reservations.send_replace(());
    }

    /// Tries to reserve capacity, and retries while completed containers are being removed.
    async fn when_removed<T>(
        &self,
        id: &ContainerId,
        amount: Amount,
        attempt: impl Fn() -> Result<T, Exhausted>,
    ) -> Result<T, Exhausted> {
        let mut releases = self.releases.subscribe();
        let deadline = Instant::now() + REMOVAL_TIMEOUT;
        loop {
            releases.mark_unchanged();
            match attempt() {
                Err(exhausted) => {
                    let waits = self.suffices_when_removed(id, amount);
                    if !waits || timeout_at(deadline, releases.changed()).await.is_err() {
                        return Err(exhausted);
                    }
                }
                admitted => return admitted,
            }
        }
    }

    /// Returns true if the capacity would suffice after the removal of the completed containers that still hold
    /// capacity.
    fn suffices_when_removed(&self, id: &ContainerId, amount: Amount) -> bool {
        let inner = locked(&self.inner);
        let mut after = inner.account.clone();
        let leaving = inner.containers.values().filter(|handle| handle.is_leaving());
        leaving.for_each(|handle| after.release(handle.id()));
        after.reserve(id, amount).is_ok()
    }

    /// Adds a container of an earlier daemon. A container whose node resources are not removed holds its capacity, even
    /// beyond the free capacity. Returns `None` if another container has claimed the id in the meantime.
    pub fn adopt(&self, facts: ContainerStatus, is_removed: bool) -> Option<Arc<Handle>> {
        let mut inner = locked(&self.inner);
        if inner.containers.contains_key(&facts.plan.id) {
            return None;
        }
        // The container used its reservation just before the daemon was killed, and the ledger does not record this.
        if inner.reserved.take(&facts.plan.id).is_some() {
            inner.account.release(&facts.plan.id);
        }
        if !is_removed {
            inner.account.adopt(&facts.plan.id, amount_of(&facts));
        }
        let handle = Arc::new(Handle::new(facts, self.networks.clone()));
        if is_removed {
            handle.set_removed();
        }
        inner.containers.insert(handle.id().clone(), Arc::clone(&handle));
        drop(inner);
        if handle.facts().is_some_and(|facts| facts.network().is_some()) {
            self.networks.send_modify(|version| *version += 1);
        }
        Some(handle)
    }

    /// Makes a pod reject new members, and returns the members. If `idle` is true, fails unless all members are
    /// completed.
    ///
    /// # Errors
    /// Returns the members that are not completed, if there are any and `idle` is true. Nothing is changed then.
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

    /// Returns the members of a pod, sorted by id.
    pub fn members(&self, pod: &ContainerId) -> Vec<Arc<Handle>> {
        locked(&self.inner).members(pod)
    }

    /// Releases the capacity of a container. The container stays in the registry. A later container with the same id
    /// keeps its own capacity.
    pub fn release(&self, handle: &Handle) {
        let mut inner = locked(&self.inner);
        if inner.containers.get(handle.id()).is_some_and(|known| std::ptr::eq(&raw const **known, handle)) {
            inner.account.release(handle.id());
        }
        drop(inner);
        handle.set_removed();
        self.releases.send_modify(|releases| *releases += 1);
    }

    /// Removes a container, and releases its capacity. `before` runs under the lock, while the id is still in use, and
    /// must not use the registry.
    pub fn remove(&self, id: &ContainerId, before: impl FnOnce()) {
        let mut inner = locked(&self.inner);
        before();
        inner.account.release(id);
        let removed = inner.containers.remove(id);
        drop(inner);
        removed.iter().for_each(|handle| handle.set_removed());
        self.releases.send_modify(|releases| *releases += 1);
    }

    /// Calls `visit` for containers sorted by id, starting after `after`, until `visit` returns false. Skips the
    /// self-test's container. The registry is not locked during a call.
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
            if !some.iter().filter(|handle| !handle.is_self_test()).all(&mut visit) {
                return;
            }
        }
    }

    /// Watches the number of times that a container joined or left a network.
    pub(crate) fn watch_networks(&self) -> watch::Receiver<u64> {
        self.networks.subscribe()
    }

    pub fn all(&self) -> Vec<Arc<Handle>> {
        locked(&self.inner).containers.values().cloned().collect()
    }

    pub(crate) fn capacity(&self) -> CapacityUse {
        let inner = locked(&self.inner);
        let (total, remaining) = (inner.account.total(), inner.account.remaining());
        let (reserved, reservations) = inner.reserved.sum();
        CapacityUse { total, remaining, allocated: total.minus(&remaining), reserved, reservations }
    }
}
