//! How many connections one user of the host has: nobody on the containers' socket may take all of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::locked;

/// Counts connections by user.
#[derive(Clone, Debug)]
pub(super) struct Crowd {
    most: usize,
    counts: Arc<Mutex<HashMap<u32, usize>>>,
}

/// A connection that is counted until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    crowd: Crowd,
    uid: u32,
}

impl Crowd {
    /// At most so many for each user.
    pub(super) fn new(most: usize) -> Self {
        Self { most, counts: Arc::default() }
    }

    /// A place for one more of a user's; `None` where it has all that it may have.
    pub(super) fn enter(&self, uid: u32) -> Option<Place> {
        let mut counts = locked(&self.counts);
        let count = counts.entry(uid).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        drop(counts);
        Some(Place { crowd: self.clone(), uid })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = locked(&self.crowd.counts);
        if let Some(count) = counts.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_its_own_places() {
        let crowd = Crowd::new(2);
        let one = crowd.enter(1).unwrap();
        let _two = crowd.enter(1).unwrap();
        assert!(crowd.enter(1).is_none());
        let other = crowd.enter(2).unwrap();
        drop(one);
        let _again = crowd.enter(1).unwrap();
        assert!(crowd.enter(1).is_none());
        drop(other);
        assert_eq!(locked(&crowd.counts).len(), 1, "nothing is kept of who left");
    }
}
