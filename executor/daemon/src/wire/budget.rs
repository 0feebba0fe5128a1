//! Memory for answers that are not read: a bound for each connection, or for all connections of a container, and one for all.
//!
//! A large answer is made when there is room for it: until then its call waits. A client that reads nothing keeps only its own
//! calls waiting; where it takes the room of others, its connection is ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::calls::Calls;
use crate::locked;

/// Room for large answers of one connection, and of all of a socket's.
const CONNECTION: usize = 16 << 20;
const ALL: usize = 128 << 20;
/// Room for one of them: a page of a list, and the message that it is encoded from.
const LARGE: usize = 4 << 20;
/// Answers that go on as streams, of all of a socket's connections: each has some 64 KiB that its client has not read.
const STREAMS: usize = 4096;
/// A permit is so many bytes.
const UNIT: usize = 1 << 10;
/// For room to be there; then the call is refused.
const PATIENCE: Duration = Duration::from_secs(30);
/// A client that took nothing for so long, while others wait for room, is let go.
const STALLED: Duration = Duration::from_secs(10);
/// Between looks at such clients.
const LOOK: Duration = Duration::from_secs(1);

/// Methods with answers that can be large, made as soon as they are asked for.
const LARGE_ANSWERS: [&str; 5] = [
    "/executor.v1.Executor/List",
    "/executor.v1.Executor/Get",
    "/executor.v1.Executor/GetSecrets",
    "/executor.v1.Images/List",
    "/executor.v1.Images/Inspect",
];

/// Methods with answers that go on.
const STREAM_ANSWERS: [&str; 6] = [
    "/executor.v1.Executor/StreamLogs",
    "/executor.v1.Executor/WatchEvents",
    "/executor.v1.Executor/GetOutputs",
    "/executor.v1.Executor/Exec",
    "/executor.v1.Executor/Attach",
    "/executor.v1.Images/Pull",
];

/// The room of a socket's connections.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    room: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    /// Rooms that connections have in common.
    common: Mutex<HashMap<u64, Weak<Semaphore>>>,
    /// Somebody waits for room that others have.
    pressed: Notify,
}

/// The room of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    all: Budget,
    own: Arc<Semaphore>,
}

/// Room for one answer; given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    _permits: [Option<OwnedSemaphorePermit>; 2],
}

impl Budget {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Shared {
            room: Arc::new(Semaphore::new(ALL / UNIT)),
            streams: Arc::new(Semaphore::new(STREAMS)),
            common: Mutex::default(),
            pressed: Notify::new(),
        }))
    }

    /// Room for a new connection: of its own, or the one that all connections of somebody have in common.
    pub(crate) fn room(&self, common: Option<u64>) -> Room {
        let new = || Arc::new(Semaphore::new(CONNECTION / UNIT));
        let own = common.map_or_else(new, |somebody| {
            let mut rooms = locked(&self.0.common);
            let own = rooms.get(&somebody).and_then(Weak::upgrade).unwrap_or_else(new);
            rooms.retain(|_, room| room.strong_count() > 0);
            rooms.insert(somebody, Arc::downgrade(&own));
            own
        });
        Room { all: self.clone(), own }
    }
}

impl Room {
    /// Waits until there is room for the answer of a method; none is needed for most.
    ///
    /// # Errors
    /// There was none in time: in words for the caller.
    pub(crate) async fn share(&self, method: &str) -> Result<Option<Share>, String> {
        if STREAM_ANSWERS.contains(&method) {
            let stream = Arc::clone(&self.all.0.streams).try_acquire_owned();
            let refused = |_| format!("{STREAMS} calls with streams of answers are open, which is the limit: end some");
            return stream.map(|stream| Some(Share { _permits: [Some(stream), None] })).map_err(refused);
        }
        if !LARGE_ANSWERS.contains(&method) {
            return Ok(None);
        }
        let units = (LARGE / UNIT) as u32;
        let own = Arc::clone(&self.own).acquire_many_owned(units);
        let Ok(Ok(own)) = tokio::time::timeout(PATIENCE, own).await else {
            return Err(format!(
                "answers that this connection's client has not read take more than {} MiB for {} s: read them first",
                CONNECTION >> 20,
                PATIENCE.as_secs()
            ));
        };
        let mut all = Box::pin(Arc::clone(&self.all.0.room).acquire_many_owned(units));
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Ok(all) = tokio::time::timeout(LOOK, all.as_mut()).await {
                return Ok(Some(Share { _permits: [Some(own), all.ok()] }));
            }
            if Instant::now() >= deadline {
                return Err(format!("answers that clients have not read take more than {} MiB", ALL >> 20));
            }
            self.all.0.pressed.notify_waiters();
        }
    }

    /// Resolves when others wait for room and this connection's client takes nothing: with the bytes that it leaves.
    pub(crate) async fn in_the_way(&self, calls: &Calls) -> usize {
        loop {
            self.all.0.pressed.notified().await;
            let (bytes, progress) = calls.unwritten();
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
        let (budget, method) = (Budget::new(), "/executor.v1.Executor/StreamLogs");
        let mut held = Vec::new();
        for _ in 0..STREAMS {
            held.push(budget.room(None).share(method).await.unwrap().unwrap());
        }
        let refused = budget.room(None).share(method).await.unwrap_err();
        assert!(refused.contains("4096"), "{refused}");
        held.pop();
        assert!(budget.room(None).share(method).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn connections_of_one_container_have_one_room() {
        let budget = Budget::new();
        let mut held = Vec::new();
        for _ in 0..CONNECTION / LARGE {
            let room = budget.room(Some(7));
            held.push((room.share(LIST).await.unwrap().unwrap(), room));
        }
        assert!(budget.room(Some(7)).share(LIST).await.is_err());
        assert!(budget.room(Some(8)).share(LIST).await.is_ok());
        held.clear();
        assert!(budget.room(Some(7)).share(LIST).await.is_ok());
        let _other = budget.room(Some(9));
        assert_eq!(locked(&budget.0.common).len(), 1, "nothing is kept of who left");
    }

    const LIST: &str = "/executor.v1.Executor/List";

    /// One connection's unread answers keep its own calls waiting; all connections' together are ended where their clients
    /// take nothing.
    #[tokio::test(start_paused = true)]
    async fn who_reads_nothing_waits_and_then_goes() {
        let budget = Budget::new();
        let room = budget.room(None);
        let mut held = Vec::new();
        for _ in 0..CONNECTION / LARGE {
            held.push(room.share(LIST).await.unwrap().unwrap());
        }
        let refused = room.share(LIST).await.unwrap_err();
        assert!(refused.contains("16 MiB"), "{refused}");
        assert!(room.share("/executor.v1.Executor/Wait").await.unwrap().is_none());
        let others: Vec<Room> = (1..ALL / CONNECTION).map(|_| budget.room(None)).collect();
        for other in &others {
            for _ in 0..CONNECTION / LARGE {
                held.push(other.share(LIST).await.unwrap().unwrap());
            }
        }
        let (idle, stalled) = (Calls::new(1), Calls::new(1));
        stalled.opened_for_test(1);
        let late = budget.room(None);
        let waiting = async {
            let share = late.share(LIST).await.unwrap();
            assert!(share.is_some());
        };
        let watching = async {
            assert_eq!(room.in_the_way(&stalled).await, 7);
            held.clear();
        };
        let start = Instant::now();
        tokio::select! {
            ((), ()) = async { tokio::join!(waiting, watching) } => {}
            _ = room.in_the_way(&idle) => panic!("a client that has nothing to read"),
        }
        assert!((STALLED..STALLED + 2 * LOOK).contains(&start.elapsed()), "{:?}", start.elapsed());
    }
}
