//! Manages connection slots for scrapes, so that idle connections do not block new clients.
//!
//! A connection can lose its slot to a new connection once it has been idle for [`LIFETIME_MIN`]. A connection is idle
//! while its request is incomplete (silent) or its response is unread. The owner with the most connections loses a slot
//! first: a silent connection before one with an unread response, and older connections before newer ones. A connection
//! whose request is being processed keeps its slot until its time limit.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use executor_sys::mutex::locked;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Maximum number of connections of the scrape listener.
const MOST: usize = 64;
/// Time for sending the request, and again for reading the response, after which the connection can lose its slot.
const LIFETIME_MIN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A user of this host, on the unix socket.
    User(u32),
    /// A client of the loopback address.
    Address(IpAddr),
}

#[derive(Clone, Copy, Debug)]
enum SlotPhase {
    /// The client has not sent a complete request; holds the start time.
    Silent(Instant),
    /// The request is being processed.
    Processing,
    /// The client has not read the response; holds the start time.
    Answered(Instant),
}

impl SlotPhase {
    /// Returns the start of an idle phase, and true for a silent client; `None` while the request is being processed.
    fn idle(self) -> Option<(Instant, bool)> {
        match self {
            Self::Silent(since) => Some((since, true)),
            Self::Answered(since) => Some((since, false)),
            Self::Processing => None,
        }
    }
}

#[derive(Debug)]
struct OccupiedSlot {
    owner: Owner,
    phase: SlotPhase,
    leave: Arc<Notify>,
}

/// Connection slots of a listener.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionSlots(Arc<SlotsShared>);

#[derive(Debug, Default)]
struct SlotsShared {
    taken: Mutex<Vec<OccupiedSlot>>,
    /// Notified when a connection has closed or its phase has changed.
    changed: Notify,
}

/// A connection's slot, released on drop.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    places: ConnectionSlots,
    leave: Arc<Notify>,
}

impl ConnectionSlots {
    /// Returns the time at which a new connection can get a slot; `None` while all requests are being processed.
    pub(super) fn free_at(&self, now: Instant) -> Option<Instant> {
        let taken = locked(&self.0.taken);
        if taken.len() < MOST {
            return Some(now);
        }
        taken.iter().filter_map(|one| one.phase.idle()).map(|(since, _)| since + LIFETIME_MIN).min()
    }

    /// Waits until `at`, or until a slot may be free earlier.
    pub(super) async fn until_free(&self, mut at: Option<Instant>) {
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            changed.as_mut().enable();
            match at {
                Some(at) if at <= Instant::now() => return,
                Some(at) => tokio::select! {
                    () = sleep_until(at) => {}
                    () = changed => {}
                },
                None => changed.await,
            }
            at = self.free_at(Instant::now());
        }
    }

    /// Claims a slot. If all slots are in use, another connection loses its slot.
    pub(super) fn enter(&self, owner: Owner, now: Instant) -> ConnectionSlot {
        let mut taken = locked(&self.0.taken);
        if taken.len() >= MOST {
            let of = |owner: Owner| taken.iter().filter(|one| one.owner == owner).count();
            let candidates = taken.iter().enumerate().filter_map(|(index, one)| {
                let (since, silent) = one.phase.idle().filter(|(since, _)| now >= *since + LIFETIME_MIN)?;
                Some(((of(one.owner), silent, std::cmp::Reverse(since)), index))
            });
            if let Some((_, index)) = candidates.max() {
                taken.remove(index).leave.notify_one();
            }
        }
        let leave = Arc::new(Notify::new());
        taken.push(OccupiedSlot { owner, phase: SlotPhase::Silent(now), leave: Arc::clone(&leave) });
        drop(taken);
        ConnectionSlot { places: self.clone(), leave }
    }
}

impl ConnectionSlot {
    /// Resolves when another connection has claimed the slot.
    pub(super) async fn lost(&self) {
        self.leave.notified().await;
    }

    /// Records that the client has sent its request.
    pub(super) fn request_received(&self) {
        self.change(SlotPhase::Processing);
    }

    /// Records that the response is ready for the client to read.
    pub(super) fn answered(&self, now: Instant) {
        self.change(SlotPhase::Answered(now));
    }

    fn change(&self, phase: SlotPhase) {
        let mut taken = locked(&self.places.0.taken);
        if let Some(one) = taken.iter_mut().find(|one| Arc::ptr_eq(&one.leave, &self.leave)) {
            one.phase = phase;
        }
        drop(taken);
        self.places.0.changed.notify_waiters();
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        locked(&self.places.0.taken).retain(|one| !Arc::ptr_eq(&one.leave, &self.leave));
        self.places.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Owner = Owner::User(1);
    const B: Owner = Owner::User(2);

    fn is_lost(place: &ConnectionSlot) -> bool {
        let mut lost = std::pin::pin!(place.lost());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        lost.as_mut().poll(&mut context).is_ready()
    }

    #[test]
    fn slow_clients_make_room_in_order() {
        let places = ConnectionSlots::default();
        let begun = Instant::now();
        let old = places.enter(B, begun);
        let slow: Vec<ConnectionSlot> =
            (1..MOST as u64).map(|ms| places.enter(A, begun + Duration::from_millis(ms))).collect();
        let now = begun + Duration::from_millis(MOST as u64);
        assert_eq!(places.free_at(now), Some(begun + LIFETIME_MIN), "all connections are young");
        slow[0].request_received();
        slow[1].request_received();
        slow[1].answered(begun + Duration::from_millis(2));
        let later = begun + 2 * LIFETIME_MIN;
        let new = places.enter(B, later);
        assert!(is_lost(&slow[2]), "the oldest silent connection of the owner with the most connections is closed");
        let lost: Vec<usize> = (0..slow.len()).filter(|index| is_lost(&slow[*index])).collect();
        assert!(lost.is_empty() && !is_lost(&old) && !is_lost(&new));
        let more: Vec<ConnectionSlot> = (3..slow.len()).map(|_| places.enter(B, later)).collect();
        assert_eq!(more.iter().filter(|place| is_lost(place)).count(), 0, "no young connection is closed");
        assert!(!is_lost(&slow[0]), "a connection that waits for its response stays open");
        assert_eq!(locked(&places.0.taken).len(), MOST);
        drop((old, new, slow, more));
        assert!(locked(&places.0.taken).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn new_client_waits_while_all_are_answered() {
        let places = ConnectionSlots::default();
        let held: Vec<ConnectionSlot> = (0..MOST).map(|_| places.enter(A, Instant::now())).collect();
        held.iter().for_each(ConnectionSlot::request_received);
        assert_eq!(places.free_at(Instant::now()), None);
        let waiting = tokio::spawn({
            let places = places.clone();
            async move { places.until_free(None).await }
        });
        tokio::task::yield_now().await;
        let begun = Instant::now();
        held[7].answered(begun);
        waiting.await.unwrap();
        assert_eq!(begun.elapsed(), LIFETIME_MIN);
    }
}
