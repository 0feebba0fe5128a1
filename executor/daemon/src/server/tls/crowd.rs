//! Places before authentication: handshakes at once, and connections of each address.
//!
//! A new handshake finds a place always, unless its address has all that it may have: the oldest handshake of the
//! address with the most of them goes. So an address that leaves its handshakes hanging locks out no other.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::locked;

/// Places for connections, shared by all of them.
#[derive(Clone, Debug)]
pub(super) struct Crowd {
    handshakes: usize,
    each: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Connections by address, handshakes included. No address has 0.
    connections: HashMap<IpAddr, usize>,
    /// Handshakes, the oldest first.
    shaking: Vec<(IpAddr, Arc<Notify>)>,
}

impl State {
    /// Gives up the oldest handshake of an address.
    fn give_up(&mut self, address: IpAddr) -> Option<()> {
        let place = self.shaking.iter().position(|(of, _)| *of == address)?;
        self.shaking.remove(place).1.notify_one();
        Some(())
    }
}

/// A connection's place; given back when this is dropped.
#[derive(Debug)]
pub(in super::super) struct Place {
    crowd: Crowd,
    address: IpAddr,
    leave: Arc<Notify>,
}

impl Crowd {
    pub(super) fn new(handshakes: usize, each: usize) -> Self {
        Self { handshakes, each, state: Arc::default() }
    }

    /// Takes a place for a handshake; `None` where the address has as many connections as it may have.
    pub(super) fn enter(&self, address: IpAddr) -> Option<Place> {
        let address = network(address);
        let mut state = locked(&self.state);
        if state.connections.get(&address).is_some_and(|count| *count >= self.each) {
            // Its place is free in a moment; until then the address has one more.
            state.give_up(address)?;
        }
        if state.shaking.len() >= self.handshakes {
            let mut counts = HashMap::<IpAddr, usize>::new();
            state.shaking.iter().for_each(|(of, _)| *counts.entry(*of).or_default() += 1);
            let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(of, _)| of)?;
            state.give_up(most);
        }
        let leave = Arc::new(Notify::new());
        *state.connections.entry(address).or_default() += 1;
        state.shaking.push((address, Arc::clone(&leave)));
        drop(state);
        Some(Place { crowd: self.clone(), address, leave })
    }
}

impl Place {
    /// Resolves when another handshake has got the place.
    pub(super) async fn lost(&self) {
        self.leave.notified().await;
    }

    /// Notes that the handshake is over and the client accepted.
    pub(super) fn settle(&self) {
        locked(&self.crowd.state).shaking.retain(|(_, leave)| !Arc::ptr_eq(leave, &self.leave));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.settle();
        let mut state = locked(&self.crowd.state);
        if let Some(count) = state.connections.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                state.connections.remove(&self.address);
            }
        }
    }
}

/// Address that counts: of IPv6 the network of 64 bits, of which one host has all addresses.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn is_lost(place: &Place) -> bool {
        let mut lost = std::pin::pin!(place.lost());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        lost.as_mut().poll(&mut context).is_ready()
    }

    #[test]
    fn an_address_that_hangs_locks_out_no_other() {
        let crowd = Crowd::new(4, 100);
        let hanging: Vec<Place> = (0..4).map(|_| crowd.enter(ip("10.0.0.1")).unwrap()).collect();
        let other = crowd.enter(ip("10.0.0.2")).unwrap();
        assert!(is_lost(&hanging[0]) && !is_lost(&hanging[1]) && !is_lost(&other));
        let again = crowd.enter(ip("::ffff:10.0.0.1")).unwrap();
        assert!(is_lost(&hanging[1]) && !is_lost(&other) && !is_lost(&again), "its own goes");
        assert_eq!(locked(&crowd.state).shaking.len(), 4);
        drop((hanging, other, again));
        let state = locked(&crowd.state);
        assert!(state.shaking.is_empty() && state.connections.is_empty(), "{state:?}");
    }

    #[test]
    fn an_address_has_as_many_connections_as_it_may() {
        let crowd = Crowd::new(100, 3);
        let settled: Vec<Place> = (0..2).map(|_| crowd.enter(ip("fd00::1")).unwrap()).collect();
        settled.iter().for_each(Place::settle);
        let shaking = crowd.enter(ip("fd00::2")).unwrap();
        let next = crowd.enter(ip("fd00::3")).unwrap();
        assert!(is_lost(&shaking), "one network of 64 bits is one address");
        drop(shaking);
        next.settle();
        assert!(crowd.enter(ip("fd00::4")).is_none(), "all three are accepted");
        assert!(crowd.enter(ip("fd00:0:0:1::4")).is_some());
        drop(next);
        assert!(crowd.enter(ip("fd00::4")).is_some());
    }
}
