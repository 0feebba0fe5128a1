//! Limits concurrent handshakes, and connections per address, before clients are authenticated.
//!
//! A handshake keeps its slot for at least [`LIFETIME_MIN`], so that distant callers can complete their handshakes. If
//! all slots are in use, a new handshake replaces a handshake that is older than this time. If no handshake is older,
//! the new client is refused. Some slots are reserved for addresses from which a client authenticated recently, so that
//! unauthenticated clients cannot lock out such callers, regardless of the number of addresses that they use. If one
//! address has many handshakes, only some of them keep their slots for the minimum time, so that a few addresses cannot
//! lock out others.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use executor_sys::mutex::locked;
use tokio::sync::Notify;

/// Minimum lifetime of a handshake: several long-distance round trips.
const LIFETIME_MIN: Duration = Duration::from_millis(500);
/// Divisor of the number of slots. The quotient is the number of slots that are reserved for addresses from which a
/// client authenticated recently.
const RESERVED_DIVISOR: usize = 4;
/// Divisor of the number of slots. The quotient is the number of handshakes of one address that are guaranteed
/// [`LIFETIME_MIN`].
const SHARE_DIVISOR: usize = 16;
/// Maximum number of remembered addresses.
const REMEMBERED_MAX: usize = 1024;
/// Time for which an address is remembered after its last client authenticated or disconnected.
const ADDRESS_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Slots for handshakes and connections, shared by all connections.
#[derive(Clone, Debug)]
pub(super) struct HandshakeLimiter {
    handshakes: usize,
    each: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Connections by address. Addresses without connections are removed.
    connections: HashMap<IpAddr, Connections>,
    /// Handshakes, oldest first.
    pending: Vec<Handshake>,
    /// Number of handshakes in [`State::pending`] from addresses that were not remembered when the handshake started.
    strangers: usize,
    /// Addresses from which a client authenticated, with the last time at which a client authenticated or disconnected.
    remembered: HashMap<IpAddr, Instant>,
}

#[derive(Debug, Default)]
struct Connections {
    all: usize,
    /// Number of connections in the handshake.
    pending: usize,
}

#[derive(Debug)]
struct Handshake {
    address: IpAddr,
    is_stranger: bool,
    since: Instant,
    leave: Arc<Notify>,
}

impl State {
    fn pending_of(&self, address: IpAddr) -> usize {
        self.connections.get(&address).map_or(0, |connections| connections.pending)
    }

    /// Removes the oldest handshake for which `fits` is true, and notifies its connection to close. Returns `None` if
    /// there is no such handshake.
    fn drop_oldest(&mut self, fits: impl Fn(&Self, &Handshake) -> bool) -> Option<()> {
        let place = self.pending.iter().position(|handshake| fits(self, handshake))?;
        self.remove(place).leave.notify_one();
        Some(())
    }

    fn remove(&mut self, place: usize) -> Handshake {
        let handshake = self.pending.remove(place);
        self.strangers -= usize::from(handshake.is_stranger);
        if let Some(connections) = self.connections.get_mut(&handshake.address) {
            connections.pending -= 1;
        }
        handshake
    }

    fn is_remembered(&self, address: IpAddr, now: Instant) -> bool {
        self.remembered.get(&address).is_some_and(|last| now.saturating_duration_since(*last) < ADDRESS_LIFETIME)
    }

    fn remember(&mut self, address: IpAddr, now: Instant) {
        self.remembered.insert(address, now);
        if self.remembered.len() > REMEMBERED_MAX {
            let oldest = self.remembered.iter().min_by_key(|(_, last)| **last).map(|(address, _)| *address);
            oldest.and_then(|oldest| self.remembered.remove(&oldest));
        }
    }
}

/// A connection's slot, released on drop.
#[derive(Debug)]
pub struct Place {
    limiter: HandshakeLimiter,
    address: IpAddr,
    leave: Arc<Notify>,
    /// True after the client was accepted.
    is_settled: bool,
}

impl HandshakeLimiter {
    pub(super) fn new(handshakes: usize, each: usize) -> Self {
        Self { handshakes, each, state: Arc::default() }
    }

    /// Claims a slot for a handshake. Returns `None` if the client must be refused.
    pub(super) fn enter(&self, address: IpAddr, now: Instant) -> Option<Place> {
        let address = network(address);
        let mut state = locked(&self.state);
        let is_old = |handshake: &Handshake| now.saturating_duration_since(handshake.since) >= LIFETIME_MIN;
        if state.connections.get(&address).is_some_and(|connections| connections.all >= self.each) {
            // The removed connection closes shortly. Until it is closed, the address has one connection beyond its
            // limit.
            state.drop_oldest(|_, one| one.address == address && is_old(one))?;
        }
        let is_stranger = !state.is_remembered(address, now);
        let kept = self.handshakes / RESERVED_DIVISOR;
        let is_full = state.pending.len() >= self.handshakes;
        if is_full || (is_stranger && state.strangers >= self.handshakes - kept) {
            // A client of an unknown address may replace handshakes of other unknown addresses. If all slots are in
            // use, and remembered addresses have more than their reserved slots, the client may replace any handshake.
            let is_beyond = state.pending.len() - state.strangers > kept;
            let may_go = |one: &Handshake| one.is_stranger || !is_stranger || (is_full && is_beyond);
            let share = (self.handshakes / SHARE_DIVISOR).max(1);
            let most = state.connections.values().map(|connections| connections.pending).max().unwrap_or_default();
            let is_of_many = |state: &State, one: &Handshake| most > share && state.pending_of(one.address) == most;
            state
                .drop_oldest(|state, one| may_go(one) && is_of_many(state, one))
                .or_else(|| state.drop_oldest(|_, one| one.is_stranger && is_old(one)))
                .or_else(|| state.drop_oldest(|_, one| may_go(one) && is_old(one)))?;
        }
        let leave = Arc::new(Notify::new());
        let connections = state.connections.entry(address).or_default();
        (connections.all, connections.pending) = (connections.all + 1, connections.pending + 1);
        state.strangers += usize::from(is_stranger);
        state.pending.push(Handshake { address, is_stranger, since: now, leave: Arc::clone(&leave) });
        drop(state);
        Some(Place { limiter: self.clone(), address, leave, is_settled: false })
    }
}

impl Place {
    /// Resolves when another handshake has claimed the slot.
    pub(super) async fn lost(&self) {
        self.leave.notified().await;
    }

    /// Records that the handshake is complete and the client was accepted.
    pub(super) fn settle(&mut self, now: Instant) {
        self.is_settled = true;
        let mut state = locked(&self.limiter.state);
        self.end_handshake(&mut state);
        state.remember(self.address, now);
    }

    fn end_handshake(&self, state: &mut State) {
        if let Some(place) = state.pending.iter().position(|one| Arc::ptr_eq(&one.leave, &self.leave)) {
            state.remove(place);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = locked(&self.limiter.state);
        self.end_handshake(&mut state);
        if self.is_settled {
            state.remember(self.address, Instant::now());
        }
        if let Some(connections) = state.connections.get_mut(&self.address) {
            connections.all -= 1;
            if connections.all == 0 {
                state.connections.remove(&self.address);
            }
        }
    }
}

/// Returns the address that the limits apply to: for IPv6 the /64 network, because one host can use the whole network.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Returns the IPv4 address that is `number` above 10.0.0.0.
    fn address(number: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + number).to_be_bytes())
    }

    fn is_lost(place: &Place) -> bool {
        let mut lost = std::pin::pin!(place.lost());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        lost.as_mut().poll(&mut context).is_ready()
    }

    #[test]
    fn handshake_lives_its_minimum_life() {
        let (limiter, now) = (HandshakeLimiter::new(4, 100), Instant::now());
        let places: Vec<Place> = (0..3).map(|number| limiter.enter(address(number), now).unwrap()).collect();
        assert!(
            limiter.enter(address(9), now + LIFETIME_MIN / 2).is_none(),
            "a quarter of the slots is reserved, and the other handshakes are young"
        );
        assert!(!places.iter().any(is_lost));
        let next = limiter.enter(address(9), now + LIFETIME_MIN).unwrap();
        assert!(is_lost(&places[0]) && !is_lost(&places[1]) && !is_lost(&next), "the oldest handshake is replaced");
        drop((places, next));
        let state = locked(&limiter.state);
        assert!(state.pending.is_empty() && state.connections.is_empty() && state.strangers == 0, "{state:?}");
    }

    #[test]
    fn remembered_address_finds_a_kept_place() {
        let (limiter, now) = (HandshakeLimiter::new(4, 100), Instant::now());
        limiter.enter(ip("fd00::1"), now).unwrap().settle(now);
        let strangers: Vec<Place> = (0..3).map(|number| limiter.enter(address(number), now).unwrap()).collect();
        assert!(limiter.enter(address(9), now).is_none(), "control failed");
        let caller = limiter.enter(ip("fd00::2"), now).expect("an address of the same network of 64 bits");
        assert!(!is_lost(&caller) && !strangers.iter().any(is_lost));
        let later = now + ADDRESS_LIFETIME * 2;
        assert!(!locked(&limiter.state).is_remembered(ip("fd00::"), later));
    }

    #[test]
    fn remembered_addresses_are_bounded() {
        let (limiter, now) = (HandshakeLimiter::new(4, 100), Instant::now());
        for number in 0..2 * REMEMBERED_MAX as u32 {
            let at = now + Duration::from_millis(u64::from(number));
            locked(&limiter.state).remember(address(number), at);
        }
        let state = locked(&limiter.state);
        assert_eq!(state.remembered.len(), REMEMBERED_MAX);
        assert!(
            !state.is_remembered(address(0), now) && state.is_remembered(address(2 * REMEMBERED_MAX as u32 - 1), now)
        );
    }

    #[test]
    fn address_with_many_handshakes_yields() {
        let (limiter, now) = (HandshakeLimiter::new(32, 100), Instant::now());
        let hanging: Vec<Place> = (0..24).map(|_| limiter.enter(ip("10.0.0.1"), now).unwrap()).collect();
        let other = limiter.enter(ip("10.0.0.2"), now).unwrap();
        assert!(is_lost(&hanging[0]) && !is_lost(&hanging[1]) && !is_lost(&other));
        let again = limiter.enter(ip("::ffff:10.0.0.1"), now).unwrap();
        assert!(
            is_lost(&hanging[1]) && !is_lost(&other) && !is_lost(&again),
            "a handshake of another address was replaced"
        );
        assert_eq!(locked(&limiter.state).pending.len(), 24);
    }

    #[test]
    fn address_has_its_maximum_of_connections() {
        let (limiter, now) = (HandshakeLimiter::new(100, 3), Instant::now());
        let mut settled: Vec<Place> = (0..2).map(|_| limiter.enter(ip("fd00::1"), now).unwrap()).collect();
        settled.iter_mut().for_each(|place| place.settle(now));
        let pending = limiter.enter(ip("fd00::2"), now).unwrap();
        assert!(limiter.enter(ip("fd00::3"), now).is_none(), "the handshake is young");
        let mut next = limiter.enter(ip("fd00::3"), now + LIFETIME_MIN).unwrap();
        assert!(is_lost(&pending), "one network of 64 bits is one address");
        drop(pending);
        next.settle(now);
        assert!(limiter.enter(ip("fd00::4"), now + LIFETIME_MIN).is_none(), "all three are accepted");
        assert!(limiter.enter(ip("fd00:0:0:1::4"), now).is_some());
        drop(next);
        assert!(limiter.enter(ip("fd00::4"), now).is_some());
    }

    /// Simulates an attack by unauthenticated clients, each from its own address, at `each_second` clients per second,
    /// while callers connect whose handshakes last `takes`. Returns the number of callers that were served.
    fn attacked(places: usize, each_second: u32, takes: Duration, are_remembered: bool) -> usize {
        let (limiter, start) = (HandshakeLimiter::new(places, 128), Instant::now());
        let callers: Vec<IpAddr> = (0..8).map(|number| IpAddr::from([192, 0, 2, number])).collect();
        if are_remembered {
            callers.iter().for_each(|caller| locked(&limiter.state).remember(*caller, start));
        }
        let (mut strangers, mut waiting, mut served) = (VecDeque::new(), Vec::new(), 0);
        for number in 0..3 * each_second {
            let now = start + Duration::from_secs(1) * number / each_second;
            if let Some(place) = limiter.enter(address(number), now) {
                strangers.push_back(place);
            }
            strangers.retain(|place| !is_lost(place));
            // The callers arrive one at a time, during the second of the three seconds.
            if number >= each_second
                && (number - each_second).is_multiple_of(each_second / 8)
                && let Some(caller) = callers.get(((number - each_second) / (each_second / 8)) as usize)
                && let Some(place) = limiter.enter(*caller, now)
            {
                waiting.push((place, now + takes));
            }
            waiting.retain_mut(|(place, end)| {
                if is_lost(place) {
                    return false;
                }
                if *end <= now {
                    place.settle(now);
                    served += 1;
                }
                *end > now
            });
        }
        served
    }

    #[test]
    fn strangers_of_many_addresses_cut_no_caller() {
        let takes = Duration::from_millis(400);
        assert_eq!(attacked(512, 700, takes, false), 8);
        assert_eq!(attacked(512, 2000, takes, true), 8, "addresses that authenticated lately");
        assert!(attacked(64, 700, takes, false) < 8 && attacked(512, 2000, takes, false) < 8, "control failed");
    }

    /// Under random connects, authentications and disconnects, all limits hold, and no handshake loses its slot early
    /// unless its address has too many handshakes.
    #[test]
    fn random_events_keep_the_bounds() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        for round in 0..20 {
            let (places, each) = (1 + next(64) as usize, 1 + next(40) as usize);
            let (limiter, mut now) = (HandshakeLimiter::new(places, each), Instant::now());
            let mut pending: Vec<(Place, Instant)> = Vec::new();
            let mut settled = Vec::new();
            for _ in 0..2000 {
                now += Duration::from_millis(next(40));
                let below = 1 + next(60);
                let from = address(next(below) as u32);
                match next(10) {
                    0 if !pending.is_empty() => {
                        let (mut place, _) = pending.swap_remove(next(pending.len() as u64) as usize);
                        place.settle(now);
                        settled.push(place);
                    }
                    1 if !pending.is_empty() => drop(pending.swap_remove(next(pending.len() as u64) as usize)),
                    2 if !settled.is_empty() => drop(settled.swap_remove(next(settled.len() as u64) as usize)),
                    _ => {
                        let before = locked(&limiter.state).pending.iter().map(|one| one.address).collect::<Vec<_>>();
                        let entered = limiter.enter(from, now);
                        pending.retain(|(place, since)| {
                            let of_address = before.iter().filter(|one| **one == place.address).count();
                            let is_young = now.saturating_duration_since(*since) < LIFETIME_MIN;
                            let lost = is_lost(place);
                            let may_be_lost = !is_young || of_address > (places / SHARE_DIVISOR).max(1);
                            assert!(
                                !lost || may_be_lost,
                                "round {round}: a young handshake of {of_address} was dropped"
                            );
                            !lost
                        });
                        pending.extend(entered.map(|place| (place, now)));
                    }
                }
                let state = locked(&limiter.state);
                assert!(
                    state.pending.len() <= places && state.strangers <= places - places / RESERVED_DIVISOR,
                    "{state:?}"
                );
                assert_eq!(state.pending.len(), pending.len());
                assert_eq!(state.strangers, state.pending.iter().filter(|one| one.is_stranger).count());
                assert_eq!(state.connections.values().map(|one| one.all).sum::<usize>(), pending.len() + settled.len());
                assert!(state.connections.values().all(|one| one.all <= each && one.pending <= one.all), "{state:?}");
            }
        }
    }
}
