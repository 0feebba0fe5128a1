//! Places for connections: nobody may take all of them, and those that ask nothing make room.
//!
//! A connection that nothing is asked on costs little, and control planes keep theirs for days: so it stays until its place is
//! wanted. Then the ones that never said anything go first, then those that are idle, the oldest of the one who has most.
//! Somebody who has few finds a place beyond the limit where all others are busy.

use std::sync::{Arc, Mutex, MutexGuard};

use executor_core::idmap::Pool;
use tokio::sync::Notify;

use crate::locked;
use crate::wire::Calls;

/// Who a connection is counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A user of the host.
    User(u32),
    /// A container with ids of its own, by its range of them: a process in it can have any of these.
    Container(u32),
}

impl Owner {
    /// A number of its own.
    pub(super) fn number(self) -> u64 {
        match self {
            Self::User(uid) => u64::from(uid),
            Self::Container(range) => 1 << 32 | u64::from(range),
        }
    }

    /// The owner that a user of the host stands for, where these ids are containers'.
    pub(super) fn of(uid: u32, pool: Option<&Pool>) -> Self {
        pool.and_then(|pool| pool.range_of(uid)).map_or(Self::User(uid), Self::Container)
    }
}

/// Bounds of a door's connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// All of them.
    pub(super) all: usize,
    /// Of one owner.
    pub(super) each: usize,
    /// Of all users of the host together.
    pub(super) users: usize,
    /// Beyond `all`, for owners that have fewer than `few`; for root of the host, `few_of_root`.
    pub(super) spare: usize,
    pub(super) few: usize,
    pub(super) few_of_root: usize,
}

/// The places of one door.
#[derive(Clone, Debug)]
pub(super) struct Places {
    limits: Limits,
    taken: Arc<Mutex<Vec<Taken>>>,
}

#[derive(Debug)]
struct Taken {
    owner: Owner,
    calls: Calls,
    leave: Arc<Notify>,
}

impl Taken {
    /// How willingly the connection is given up; `None` where a call is under way.
    fn idleness(&self) -> Option<u8> {
        match (self.calls.is_idle(), self.calls.is_settled(), self.calls.has_called()) {
            (false, ..) => None,
            (true, false, _) => Some(2),
            (true, true, false) => Some(1),
            (true, true, true) => Some(0),
        }
    }
}

/// A connection's place; given back when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Places,
    leave: Arc<Notify>,
}

impl Place {
    /// Resolves when somebody else has the place.
    pub(super) async fn lost(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken().retain(|taken| !Arc::ptr_eq(&taken.leave, &self.leave));
    }
}

impl Places {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, taken: Arc::default() }
    }

    fn taken(&self) -> MutexGuard<'_, Vec<Taken>> {
        locked(&self.taken)
    }

    /// A place for a connection with these calls; `None` where there is none to be had.
    pub(super) fn enter(&self, owner: Owner, calls: &Calls) -> Option<Place> {
        let Limits { all, each, users, spare, few, few_of_root } = self.limits;
        let mut taken = self.taken();
        let of = |taken: &[Taken], owner| taken.iter().filter(|one| one.owner == owner).count();
        let is_user = |owner: Owner| matches!(owner, Owner::User(_));
        let own = of(&taken, owner);
        if own >= each {
            give_up(&mut taken, |one| one.owner == owner)?;
        } else if is_user(owner) && taken.iter().filter(|one| is_user(one.owner)).count() >= users {
            give_up(&mut taken, |one| is_user(one.owner))?;
        } else if taken.len() >= all {
            // Of the one who has most: first of those who have more than the one who comes.
            let most = taken.iter().filter(|one| one.idleness().is_some()).map(|one| of(&taken, one.owner)).max();
            let counts: Vec<(Owner, usize)> = taken.iter().map(|one| (one.owner, of(&taken, one.owner))).collect();
            let has_most = |one: &Taken| counts.contains(&(one.owner, most.unwrap_or(0)));
            if most.is_none_or(|most| most <= own) || give_up(&mut taken, has_most).is_none() {
                let few = if owner == Owner::User(0) { few_of_root } else { few };
                let beyond = own < few && taken.len() < all + spare;
                if !beyond {
                    give_up(&mut taken, |one| one.owner == owner)?;
                }
            }
        }
        let leave = Arc::new(Notify::new());
        taken.push(Taken { owner, calls: calls.clone(), leave: Arc::clone(&leave) });
        drop(taken);
        Some(Place { places: self.clone(), leave })
    }
}

/// Ends one of these connections: the most idle, of those the oldest.
fn give_up(taken: &mut Vec<Taken>, which: impl Fn(&Taken) -> bool) -> Option<()> {
    let idle = taken.iter().enumerate().filter(|(_, one)| which(one));
    let idle = idle.filter_map(|(place, one)| Some((one.idleness()?, std::cmp::Reverse(place))));
    let (_, std::cmp::Reverse(place)) = idle.max()?;
    taken.remove(place).leave.notify_one();
    Some(())
}

#[cfg(test)]
mod tests {
    use executor_core::idmap::RANGE;
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

    fn owners(places: &Places) -> Vec<Owner> {
        places.taken().iter().map(|taken| taken.owner).collect()
    }

    #[test]
    fn idle_connections_make_room_and_busy_ones_stay() {
        let places = Places::new(LIMITS);
        let enter = |owner, calls: &Calls| places.enter(owner, calls);
        let mut held: Vec<Place> = (0..6).map(|_| enter(A, &busy()).unwrap()).collect();
        assert!(enter(A, &idle()).is_none(), "all that one may have, and all are busy");
        held.push(enter(B, &idle()).unwrap());
        held.push(enter(B, &busy()).unwrap());
        // B's own idle one goes.
        held.push(enter(B, &busy()).unwrap());
        assert_eq!(owners(&places).iter().filter(|owner| **owner == B).count(), 2);
        assert!(enter(B, &busy()).is_none(), "full, and B has some");
        held.push(enter(Owner::User(3), &idle()).unwrap()); // beyond the limit
        held.push(enter(ROOT, &busy()).unwrap()); // in the place of the one that asks nothing
        held.push(enter(ROOT, &busy()).unwrap());
        assert!(enter(ROOT, &busy()).is_none(), "root has some");
        held.push(enter(Owner::User(3), &busy()).unwrap());
        assert!(enter(Owner::User(4), &busy()).is_none(), "nothing is left beyond the limit");
        held.clear();
        assert_eq!(owners(&places), []);
    }

    #[tokio::test]
    async fn the_most_idle_of_the_one_who_has_most_goes_first() {
        let places = Places::new(LIMITS);
        let settled = Calls::new(1);
        settled.settle_for_test();
        let mut held = vec![places.enter(B, &idle()).unwrap(), places.enter(A, &settled).unwrap()];
        held.extend((0..5).map(|_| places.enter(A, &idle()).unwrap()));
        held.push(places.enter(B, &idle()).unwrap());
        let _new = places.enter(Owner::User(3), &idle()).unwrap();
        held[2].lost().await; // of A, which has most; the oldest that said nothing
        assert_eq!(places.taken().len(), LIMITS.all);
        assert!(places.enter(A, &busy()).is_some(), "A's own");
    }

    /// A process in a container has any of its ids: other containers have their places all the same.
    #[test]
    fn all_ids_of_a_container_are_one_owner() {
        let policy = Policy { userns_pool_start: 1 << 20, userns_pool_ranges: 10, ..Policy::default() };
        let pool = policy.userns_pool().ok();
        let owner = |uid| Owner::of(uid, pool.as_ref());
        assert_eq!(owner((1 << 20) - 1), Owner::User((1 << 20) - 1));
        assert_eq!(owner((1 << 20) + 10 * RANGE), Owner::User((1 << 20) + 10 * RANGE));
        let places = Places::new(Limits { all: 8, each: 3, users: 4, spare: 3, few: 1, few_of_root: 2 });
        let mut held = Vec::new();
        let entered: Vec<bool> = (0..9)
            .map(|id| {
                let place = places.enter(owner((1 << 20) + id * (RANGE / 9)), &busy());
                let entered = place.is_some();
                held.extend(place);
                entered
            })
            .collect();
        assert_eq!(entered, [true, true, true, false, false, false, false, false, false]);
        for range in 1..10 {
            let place = places.enter(owner((1 << 20) + range * RANGE), &busy());
            assert_eq!(place.is_some(), range < 9, "{range}");
            held.extend(place);
        }
    }

    #[test]
    fn one_who_sends_nothing_locks_nobody_out() {
        let places = Places::new(Limits { all: 256, each: 256, ..LIMITS });
        let _held: Vec<_> = (0..1000).map(|_| places.enter(A, &idle()).unwrap()).collect();
        assert_eq!(places.taken().len(), 256);
        for owner in [A, B, ROOT] {
            assert!(places.enter(owner, &busy()).is_some());
        }
    }
}
