//! Limits concurrent transfers, for the node and for each container.
//!
//! A transfer first waits for a slot of its container, then for a slot of the node. Both queues are first in, first
//! out. A container never has more transfers in the node's queue than its own limit, so the slow transfers of one
//! container leave the other slots of the node free.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use executor_core::ident::ContainerId;
use executor_sys::mutex::locked;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Debug)]
pub(crate) struct TransferSlots {
    node: Arc<Semaphore>,
    per_container: usize,
    /// Slots of containers with a waiting or running transfer.
    containers: Mutex<HashMap<ContainerId, Arc<Semaphore>>>,
}

/// The slots of a transfer, released on drop.
#[derive(Debug)]
pub(crate) struct TransferSlot {
    _node: OwnedSemaphorePermit,
    _container: OwnedSemaphorePermit,
}

impl TransferSlots {
    pub(crate) fn new(node: usize, per_container: usize) -> Self {
        Self { node: Arc::new(Semaphore::new(node)), per_container, containers: Mutex::default() }
    }

    /// Waits for the slots of a container's transfer. Returns `None` if the queue is closed.
    pub(crate) async fn wait(&self, id: &ContainerId) -> Option<TransferSlot> {
        let places = {
            let mut containers = locked(&self.containers);
            // Remove unused entries. Running and waiting transfers hold a reference.
            containers.retain(|_, places| Arc::strong_count(places) > 1);
            let places = containers.entry(id.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.per_container)));
            Arc::clone(places)
        };
        let container = places.acquire_owned().await.ok()?;
        let node = Arc::clone(&self.node).acquire_owned().await.ok()?;
        Some(TransferSlot { _node: node, _container: container })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn id(id: &str) -> ContainerId {
        id.parse().unwrap()
    }

    /// Returns the slots if they are free now.
    async fn now(turns: &TransferSlots, of: &str) -> Option<TransferSlot> {
        timeout(Duration::from_millis(20), turns.wait(&id(of))).await.ok().flatten()
    }

    #[tokio::test]
    async fn transfers_of_one_container_leave_places() {
        let turns = TransferSlots::new(3, 2);
        let (first, _second) = (now(&turns, "slow").await, now(&turns, "slow").await.unwrap());
        assert!(first.is_some() && now(&turns, "slow").await.is_none());
        let other = now(&turns, "other").await;
        assert!(other.is_some() && now(&turns, "third").await.is_none(), "the node has three slots");
        drop(first);
        assert!(now(&turns, "slow").await.is_some() && now(&turns, "third").await.is_some());
    }

    #[tokio::test]
    async fn slots_of_idle_containers_are_removed() {
        let turns = TransferSlots::new(3, 2);
        drop(now(&turns, "gone").await);
        let _turn = now(&turns, "here").await;
        assert_eq!(locked(&turns.containers).keys().collect::<Vec<_>>(), [&id("here")]);
    }
}
