//! Assigns connection slots. No owner can lock out other owners, and idle connections are closed when slots are needed.
//!
//! Control planes keep connections open for days, and an idle connection uses little memory, so an idle connection
//! stays open until its slot is needed. The owner with the most connections then loses its oldest connection that never
//! made a call or, if there is none, its oldest idle connection. If all connections are busy, an owner with few
//! connections gets a slot beyond the limit.

use std::sync::{Arc, Mutex, MutexGuard};

use executor_core::idmap::Pool;
use executor_sys::mutex::locked;
use tokio::sync::Notify;

use crate::wire::Calls;

/// Owner of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A user of the host, by user id.
    User(u32),
    /// A container with its own user namespace, identified by its range of host ids. Its processes can have any of
    /// these ids.
    Container(u32),
    /// A caller over TCP, identified by the number of its identity.
    Caller(u32),
}

impl Owner {
    /// Returns true if the owner is the root user of the host.
    pub fn is_root(self) -> bool {
        self == Self::User(0)
    }

    /// Returns the unique number of the owner.
    pub fn number(self) -> u64 {
        match self {
            Self::User(uid) => u64::from(uid),
            Self::Container(range) => 1 << 32 | u64::from(range),
            Self::Caller(identity) => 1 << 33 | u64::from(identity),
        }
    }

    /// Returns the owner for a host uid. `pool` has the host id ranges of containers.
    pub fn new(uid: u32, pool: Option<&Pool>) -> Self {
        pool.and_then(|pool| pool.range_of(uid)).map_or(Self::User(uid), Self::Container)
    }
}

/// Connection limits of a socket.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of connections.
    pub all: usize,
    /// Maximum number of connections of one owner.
    pub each: usize,
    /// Maximum number of connections of all host users together.
    pub users: usize,
    /// Number of slots beyond `all`, for owners with fewer than `few` connections.
    pub spare: usize,
    /// An owner with this many connections or more gets no spare slot.
    pub few: usize,
    /// If the host's root has this many connections or more, root gets no spare slot.
    pub few_of_root: usize,
}

/// Connection slots of one socket.
#[derive(Clone, Debug)]
pub struct Slots {
    limits: Limits,
    occupied: Arc<Mutex<Vec<Occupied>>>,
}

#[derive(Debug)]
struct Occupied {
    owner: Owner,
    calls: Calls,
    leave: Arc<Notify>,
}

impl Occupied {
    /// Returns a priority for closing the connection (the connection with the highest priority is closed first), or
    /// `None` while a call is in progress.
    fn idleness(&self) -> Option<u8> {
        match (self.calls.is_idle(), self.calls.is_settled(), self.calls.has_called()) {
            (false, ..) => None,
            (true, false, _) => Some(2),
            (true, true, false) => Some(1),
            (true, true, true) => Some(0),
        }
    }
}

/// A connection's slot, released on drop.
#[derive(Debug)]
pub struct Slot {
    slots: Slots,
    leave: Arc<Notify>,
}

impl Slot {
    /// Resolves when another connection has claimed the slot.
    pub async fn lost(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.occupied().retain(|taken| !Arc::ptr_eq(&taken.leave, &self.leave));
    }
}

impl Slots {
    pub fn new(limits: Limits) -> Self {
        Self { limits, occupied: Arc::default() }
    }

    fn occupied(&self) -> MutexGuard<'_, Vec<Occupied>> {
        locked(&self.occupied)
    }

    /// Claims a slot for a connection whose calls are in `calls`. Returns `None` if no slot can be made free.
    pub fn take(&self, owner: Owner, calls: &Calls) -> Option<Slot> {
        let Limits { all, each, users, spare, few, few_of_root } = self.limits;
        let mut taken = self.occupied();
        let of = |taken: &[Occupied], owner| taken.iter().filter(|one| one.owner == owner).count();
        let is_user = |owner: Owner| matches!(owner, Owner::User(_));
        let own = of(&taken, owner);
        if own >= each {
            close_idlest(&mut taken, |one| one.owner == owner)?;
        } else if is_user(owner) && taken.iter().filter(|one| is_user(one.owner)).count() >= users {
            close_idlest(&mut taken, |one| is_user(one.owner))?;
        } else if taken.len() >= all {
            // Among the owners with idle connections, find the owner with the most connections. Close one of its
            // connections if that owner has more connections than the owner of the new connection.
            let most = taken.iter().filter(|one| one.idleness().is_some()).map(|one| of(&taken, one.owner)).max();
            let counts: Vec<(Owner, usize)> = taken.iter().map(|one| (one.owner, of(&taken, one.owner))).collect();
            let has_most = |one: &Occupied| counts.contains(&(one.owner, most.unwrap_or(0)));
            if most.is_none_or(|most| most <= own) || close_idlest(&mut taken, has_most).is_none() {
                let few = if owner.is_root() { few_of_root } else { few };
                let beyond = own < few && taken.len() < all + spare;
                if !beyond {
                    close_idlest(&mut taken, |one| one.owner == owner)?;
                }
            }
        }
        let leave = Arc::new(Notify::new());
        taken.push(Occupied { owner, calls: calls.clone(), leave: Arc::clone(&leave) });
        drop(taken);
        Some(Slot { slots: self.clone(), leave })
    }
}

/// Closes the connection with the highest idleness among the connections that `which` selects. If several have the same
/// idleness, closes the oldest.
fn close_idlest(taken: &mut Vec<Occupied>, which: impl Fn(&Occupied) -> bool) -> Option<()> {
    let idle = taken.iter().enumerate().filter(|(_, one)| which(one));
    let idle = idle.filter_map(|(place, one)| Some((one.idleness()?, std::cmp::Reverse(place))));
    let (_, std::cmp::Reverse(place)) = idle.max()?;
    taken.remove(place).leave.notify_one();
    Some(())
}

#[cfg(test)]
mod tests {
    use executor_core::idmap::RANGE_IDS;
    use executor_core::validate::Policy;

    use super::*;

    const LIMITS: Limits = Limits { all: 8, each: 6, users: usize::MAX, spare: 3, few: 1, few_of_root: 2 };
    const A: Owner = Owner::User(1);
    const B: Owner = Owner::User(2);
    const ROOT: Owner = Owner::User(0);

    fn idle() -> Calls {
        Calls::new(1)
    }

    fn busy() -> Calls {
        let calls = Calls::new(1);
        calls.make_busy();
        calls
    }

    fn owners(slots: &Slots) -> Vec<Owner> {
        slots.occupied().iter().map(|taken| taken.owner).collect()
    }

    #[test]
    fn idle_connections_are_replaced_busy_ones_kept() {
        let slots = Slots::new(LIMITS);
        let take = |owner, calls: &Calls| slots.take(owner, calls);
        let mut held: Vec<Slot> = (0..6).map(|_| take(A, &busy()).unwrap()).collect();
        assert!(take(A, &idle()).is_none(), "the owner has all of its slots, and all are busy");
        held.push(take(B, &idle()).unwrap());
        held.push(take(B, &busy()).unwrap());
        // B's own idle connection is closed.
        held.push(take(B, &busy()).unwrap());
        assert_eq!(owners(&slots).iter().filter(|owner| **owner == B).count(), 2);
        assert!(take(B, &busy()).is_none(), "the slots are full, and B has some");
        held.push(take(Owner::User(3), &idle()).unwrap()); // beyond the limit
        held.push(take(ROOT, &busy()).unwrap()); // replaces the connection that makes no call
        held.push(take(ROOT, &busy()).unwrap());
        assert!(take(ROOT, &busy()).is_none(), "root has some slots");
        held.push(take(Owner::User(3), &busy()).unwrap());
        assert!(take(Owner::User(4), &busy()).is_none(), "nothing is left beyond the limit");
        held.clear();
        assert_eq!(owners(&slots), []);
    }

    #[tokio::test]
    async fn most_idle_connection_of_largest_owner_closes() {
        let slots = Slots::new(LIMITS);
        let settled = Calls::new(1);
        settled.settle_for_test();
        let mut held = vec![slots.take(B, &idle()).unwrap(), slots.take(A, &settled).unwrap()];
        held.extend((0..5).map(|_| slots.take(A, &idle()).unwrap()));
        held.push(slots.take(B, &idle()).unwrap());
        let _new = slots.take(Owner::User(3), &idle()).unwrap();
        held[2].lost().await; // the oldest silent connection of A, which has the most connections
        assert_eq!(slots.occupied().len(), LIMITS.all);
        assert!(slots.take(A, &busy()).is_some(), "a connection of A is replaced");
    }

    /// All host ids of a container count as one owner, so a process that uses many of them cannot take other
    /// containers' slots.
    #[test]
    fn all_ids_of_container_are_one_owner() {
        let policy = Policy { userns_pool_start: 1 << 20, userns_pool_ranges: 10, ..Policy::default() };
        let pool = policy.userns_pool().ok();
        let owner = |uid| Owner::new(uid, pool.as_ref());
        assert_eq!(owner((1 << 20) - 1), Owner::User((1 << 20) - 1));
        assert_eq!(owner((1 << 20) + 10 * RANGE_IDS), Owner::User((1 << 20) + 10 * RANGE_IDS));
        let slots = Slots::new(Limits { all: 8, each: 3, users: 4, spare: 3, few: 1, few_of_root: 2 });
        let mut held = Vec::new();
        let entered: Vec<bool> = (0..9)
            .map(|id| {
                let place = slots.take(owner((1 << 20) + id * (RANGE_IDS / 9)), &busy());
                let entered = place.is_some();
                held.extend(place);
                entered
            })
            .collect();
        assert_eq!(entered, [true, true, true, false, false, false, false, false, false]);
        for range in 1..10 {
            let place = slots.take(owner((1 << 20) + range * RANGE_IDS), &busy());
            assert_eq!(place.is_some(), range < 9, "{range}");
            held.extend(place);
        }
    }

    #[test]
    fn idle_connections_do_not_block_other_owners() {
        let slots = Slots::new(Limits { all: 256, each: 256, ..LIMITS });
        let _held: Vec<_> = (0..1000).map(|_| slots.take(A, &idle()).unwrap()).collect();
        assert_eq!(slots.occupied().len(), 256);
        for owner in [A, B, ROOT] {
            assert!(slots.take(owner, &busy()).is_some());
        }
    }
}
