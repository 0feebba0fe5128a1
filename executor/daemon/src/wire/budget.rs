//! Memory for unread answers: a budget for each connection, or for all connections of a container, and one for all.
//!
//! A large answer is made when the budgets have room for it: until then its call waits. A client that reads nothing
//! delays only its own calls; where others need the memory that it takes, its connection is closed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::locked;

/// Bytes for large answers of one connection.
const CONNECTION: usize = 16 << 20;
/// Bytes for large answers of all connections of a socket.
const ALL: usize = 128 << 20;
/// Bytes for one large answer: a page of a list, and the message that it is encoded from.
const LARGE: usize = 4 << 20;
/// Most streams of answers of all connections of a socket: each may have some 64 KiB that its client has not read.
const STREAMS: usize = 4096;
/// Bytes of one permit of the semaphores.
const UNIT: usize = 1 << 10;
/// Time limit for room; then the call is refused.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time without progress after which a client is stalled, while others wait for room.
const STALLED: Duration = Duration::from_secs(10);
/// Interval of looks for stalled clients.
const LOOK: Duration = Duration::from_secs(1);

/// Methods with one answer that can be large.
const LARGE_ANSWERS: [&str; 6] = [
    "/executor.v1.Executor/List",
    "/executor.v1.Executor/Get",
    "/executor.v1.Executor/Stats",
    "/executor.v1.Executor/GetSecrets",
    "/executor.v1.Images/List",
    "/executor.v1.Images/Inspect",
];

/// Methods with streams of answers.
const STREAM_ANSWERS: [&str; 7] = [
    "/executor.v1.Executor/StreamLogs",
    "/executor.v1.Executor/WatchEvents",
    "/executor.v1.Executor/WatchStats",
    "/executor.v1.Executor/GetOutputs",
    "/executor.v1.Executor/Exec",
    "/executor.v1.Executor/Attach",
    "/executor.v1.Images/Pull",
];

/// Budget of a socket's connections.
#[derive(Clone, Debug)]
pub(crate) struct AnswerBudget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    room: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    /// Budgets that several connections share, by owner.
    shared: Mutex<HashMap<u64, Weak<Semaphore>>>,
    /// Notified while a call waits for room that others take.
    pressed: Notify,
}

/// Budget of one connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionBudget {
    all: AnswerBudget,
    own: Arc<Semaphore>,
}

/// Permit for one answer; its bytes are given back when it is dropped.
#[derive(Debug)]
pub(crate) struct AnswerPermit {
    _permits: [Option<OwnedSemaphorePermit>; 2],
}

impl AnswerBudget {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Shared {
            room: Arc::new(Semaphore::new(ALL / UNIT)),
            streams: Arc::new(Semaphore::new(STREAMS)),
            shared: Mutex::default(),
            pressed: Notify::new(),
        }))
    }

    /// Returns the budget of a new connection: one of its own, or the one that all connections of an `owner` share.
    pub(crate) fn connection(&self, owner: Option<u64>) -> ConnectionBudget {
        let new = || Arc::new(Semaphore::new(CONNECTION / UNIT));
        let own = owner.map_or_else(new, |owner| {
            let mut rooms = locked(&self.0.shared);
            let own = rooms.get(&owner).and_then(Weak::upgrade).unwrap_or_else(new);
            rooms.retain(|_, room| room.strong_count() > 0);
            rooms.insert(owner, Arc::downgrade(&own));
            own
        });
        ConnectionBudget { all: self.clone(), own }
    }
}

impl ConnectionBudget {
    /// Waits until there is room for the answer of a method; most methods need no permit.
    ///
    /// # Errors
    /// There was no room in time. The text is for the caller.
    pub(crate) async fn reserve(&self, method: &str) -> Result<Option<AnswerPermit>, String> {
        if STREAM_ANSWERS.contains(&method) {
            let stream = Arc::clone(&self.all.0.streams).try_acquire_owned();
            let refused =
                |_| format!("{STREAMS} calls with streams of answers are open, which is the limit: end some of them");
            return stream.map(|stream| Some(AnswerPermit { _permits: [Some(stream), None] })).map_err(refused);
        }
        if !LARGE_ANSWERS.contains(&method) {
            return Ok(None);
        }
        let units = (LARGE / UNIT) as u32;
        let own = Arc::clone(&self.own).acquire_many_owned(units);
        let Ok(Ok(own)) = tokio::time::timeout(PATIENCE, own).await else {
            return Err(format!(
                "unread answers on this connection have taken more than {} MiB for {} s: read them first",
                CONNECTION >> 20,
                PATIENCE.as_secs()
            ));
        };
        let mut all = Box::pin(Arc::clone(&self.all.0.room).acquire_many_owned(units));
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Ok(all) = tokio::time::timeout(LOOK, all.as_mut()).await {
                return Ok(Some(AnswerPermit { _permits: [Some(own), all.ok()] }));
            }
            if Instant::now() >= deadline {
                return Err(format!("unread answers of all clients take more than {} MiB: try again later", ALL >> 20));
            }
            self.all.0.pressed.notify_waiters();
        }
    }

    /// Resolves when others wait for room and this connection's client is stalled, with its unread bytes. `unread`
    /// returns the unread bytes and the time of the last progress.
    pub(crate) async fn stalled(&self, unread: impl Fn() -> (usize, Instant)) -> usize {
        loop {
            self.all.0.pressed.notified().await;
            let (bytes, progress) = unread();
            if bytes > 0 && progress.elapsed() >= STALLED {
                return bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn streams_of_answers_are_counted() {
        let (budget, method) = (AnswerBudget::new(), "/executor.v1.Executor/StreamLogs");
        let mut held = Vec::new();
        for _ in 0..STREAMS {
            held.push(budget.connection(None).reserve(method).await.unwrap().unwrap());
        }
        let refused = budget.connection(None).reserve(method).await.unwrap_err();
        assert!(refused.contains("4096"), "{refused}");
        held.pop();
        assert!(budget.connection(None).reserve(method).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn connections_of_one_container_have_one_room() {
        let budget = AnswerBudget::new();
        let mut held = Vec::new();
        for _ in 0..CONNECTION / LARGE {
            let room = budget.connection(Some(7));
            held.push((room.reserve(LIST).await.unwrap().unwrap(), room));
        }
        assert!(budget.connection(Some(7)).reserve(LIST).await.is_err());
        assert!(budget.connection(Some(8)).reserve(LIST).await.is_ok());
        held.clear();
        assert!(budget.connection(Some(7)).reserve(LIST).await.is_ok());
        let _other = budget.connection(Some(9));
        assert_eq!(locked(&budget.0.shared).len(), 1, "nothing is kept of owners without connections");
    }

    const LIST: &str = "/executor.v1.Executor/List";

    /// One connection's unread answers delay its own calls; a stalled connection is closed when others need room.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_waits_and_is_then_closed() {
        let budget = AnswerBudget::new();
        let room = budget.connection(None);
        let mut held = Vec::new();
        for _ in 0..CONNECTION / LARGE {
            held.push(room.reserve(LIST).await.unwrap().unwrap());
        }
        let refused = room.reserve(LIST).await.unwrap_err();
        assert!(refused.contains("16 MiB"), "{refused}");
        assert!(room.reserve("/executor.v1.Executor/Wait").await.unwrap().is_none());
        let others: Vec<ConnectionBudget> = (1..ALL / CONNECTION).map(|_| budget.connection(None)).collect();
        for other in &others {
            for _ in 0..CONNECTION / LARGE {
                held.push(other.reserve(LIST).await.unwrap().unwrap());
            }
        }
        let begun = Instant::now();
        let late = budget.connection(None);
        let waiting = async {
            let share = late.reserve(LIST).await.unwrap();
            assert!(share.is_some());
        };
        let watching = async {
            assert_eq!(room.stalled(|| (7, begun)).await, 7);
            held.clear();
        };
        let start = Instant::now();
        tokio::select! {
            ((), ()) = async { tokio::join!(waiting, watching) } => {}
            _ = room.stalled(|| (0, begun)) => panic!("a client that has nothing to read"),
        }
        assert!((STALLED..STALLED + 2 * LOOK).contains(&start.elapsed()), "{:?}", start.elapsed());
    }
}
