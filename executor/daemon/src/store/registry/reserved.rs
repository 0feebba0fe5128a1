//! Stores the reservations of a registry: their lifetimes, the Runs that use them, and the reservations that have
//! expired.
//!
//! Lifetimes use the monotonic clock, so that setting the wall clock neither ends nor extends a reservation.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use executor_core::capacity::Amount;
use executor_core::ident::ContainerId;
use executor_core::time::Timestamp;
use tokio::time::Instant;

use crate::access::rules::Requester;
use crate::model::reservation::Reservation;

/// Maximum number of remembered expired reservations. The error of a late Run reports that its reservation has expired.
const EXPIRED_KEPT: usize = 1000;

#[derive(Clone, Debug)]
struct HeldReservation {
    reservation: Reservation,
    deadline: Instant,
    /// Number of Runs in progress that will use the reservation. The reservation does not expire before these Runs
    /// complete.
    claims: u32,
}

/// Reservations by id.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    held: BTreeMap<ContainerId, HeldReservation>,
    /// Expired reservations, oldest first.
    expired: VecDeque<(ContainerId, Timestamp)>,
}

impl Reserved {
    pub(super) fn get(&self, id: &ContainerId) -> Option<&Reservation> {
        self.held.get(id).map(|held| &held.reservation)
    }

    pub(super) fn all(&self) -> Vec<Reservation> {
        self.held.values().map(|held| held.reservation.clone()).collect()
    }

    /// Returns the total amount and number of the reservations.
    pub(super) fn sum(&self) -> (Amount, usize) {
        let sum = self.held.values().fold(Amount::default(), |sum, held| sum.plus(&held.reservation.amount));
        (sum, self.held.len())
    }

    /// Returns the total amount of an owner's reservations, except for the reservation of this id.
    pub(super) fn sum_of(&self, owner: &Requester, without: &ContainerId) -> Amount {
        let held = self.held.values().map(|held| &held.reservation);
        let others = held.filter(|held| held.owner.as_ref() == Some(owner) && held.id != *without);
        others.fold(Amount::default(), |sum, held| sum.plus(&held.amount))
    }

    /// Holds a reservation for `ttl` from now. Replaces a reservation with the same id.
    pub(super) fn hold(&mut self, reservation: Reservation, ttl: Duration) {
        self.expired.retain(|(id, _)| *id != reservation.id);
        let claims = self.held.get(&reservation.id).map_or(0, |held| held.claims);
        let held = HeldReservation { deadline: Instant::now() + ttl, claims, reservation };
        self.held.insert(held.reservation.id.clone(), held);
    }

    pub(super) fn take(&mut self, id: &ContainerId) -> Option<Reservation> {
        self.held.remove(id).map(|held| held.reservation)
    }

    /// Returns the time at which a reservation of this id expired, if remembered.
    pub(super) fn expired_at(&self, id: &ContainerId) -> Option<Timestamp> {
        self.expired.iter().rev().find(|(expired, _)| expired == id).map(|(_, at)| *at)
    }

    /// Counts a Run in progress; returns false if there is no reservation of this id.
    pub(super) fn claim(&mut self, id: &ContainerId) -> bool {
        self.held.get_mut(id).map(|held| held.claims += 1).is_some()
    }

    pub(super) fn unclaim(&mut self, id: &ContainerId) {
        self.held.entry(id.clone()).and_modify(|held| held.claims = held.claims.saturating_sub(1));
    }

    /// Returns the time at which the next reservation expires.
    pub(super) fn next(&self) -> Option<Instant> {
        self.held.values().filter(|held| held.claims == 0).map(|held| held.deadline).min()
    }

    /// Removes the expired reservations, and returns them.
    pub(super) fn expire(&mut self, now: Instant, at: Timestamp) -> Vec<Reservation> {
        let is_over = |_: &ContainerId, held: &mut HeldReservation| held.claims == 0 && held.deadline <= now;
        let over: Vec<Reservation> = self.held.extract_if(.., is_over).map(|(_, held)| held.reservation).collect();
        self.expired.extend(over.iter().map(|reservation| (reservation.id.clone(), at)));
        let superfluous = self.expired.len().saturating_sub(EXPIRED_KEPT);
        self.expired.drain(..superfluous);
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reservation(id: &str) -> Reservation {
        let amount = Amount { memory_bytes: 1, pids: 1, containers: 1, disk_bytes: 0 };
        Reservation { id: id.parse().unwrap(), amount, created_at: Timestamp(1), expires_at: Timestamp(2), owner: None }
    }

    #[tokio::test(start_paused = true)]
    async fn claimed_reservation_does_not_expire() {
        let mut reserved = Reserved::default();
        let (a, b): (ContainerId, ContainerId) = ("a".parse().unwrap(), "b".parse().unwrap());
        reserved.hold(reservation("a"), Duration::from_secs(5));
        reserved.hold(reservation("b"), Duration::from_secs(9));
        assert!(reserved.claim(&a) && !reserved.claim(&"c".parse().unwrap()));
        tokio::time::advance(Duration::from_secs(6)).await;
        assert_eq!(reserved.expire(Instant::now(), Timestamp(7)), []);
        reserved.unclaim(&a);
        assert_eq!(reserved.expire(Instant::now(), Timestamp(7)), [reservation("a")]);
        assert_eq!((reserved.expired_at(&a), reserved.expired_at(&b)), (Some(Timestamp(7)), None));
        assert_eq!(reserved.next(), Some(Instant::now() + Duration::from_secs(3)));
        reserved.hold(reservation("a"), Duration::from_secs(1));
        assert_eq!((reserved.expired_at(&a), reserved.sum().1), (None, 2));
    }
}
