//! Limits the memory for unread responses. Each socket has a pool, each owner may use a share of the pool, and each
//! connection a part of that share.
//!
//! A response occupies its own size until the client has read it. For a large response, the call reserves space before
//! the response is created. A client that does not read delays its own calls first, then other calls of its owner. If a
//! client makes no progress and its owner or the whole socket needs the space, its connection is closed. The number of
//! response streams per owner is limited, too.
//!
//! An owner is a host user, a container or a caller's identity. The host's root may use all free space, and part of the
//! pool is reserved for root.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use executor_sys::mutex::locked;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Maximum size of one connection's unread responses, in bytes.
const CONNECTION: usize = 16 << 20;
/// Maximum size of unread responses on a socket's connections, in bytes.
const ALL: usize = 64 << 20;
/// Space reserved to create one large response, in bytes: a page of a list, as a message and in encoded form.
const LARGE: usize = 4 << 20;
/// Maximum number of response streams per socket. Each stream may hold about 64 KiB of unread data.
const STREAMS: usize = 4096;
/// Divisor of the pool: one owner gets at most this fraction, and the same fraction is reserved for root.
const PART: usize = 4;
/// Maximum time that a call waits for space before it is refused.
const SPACE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time without progress after which a client counts as stalled. The time matters only while other calls wait for
/// space.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of responses that a client must read within [`STALL_TIMEOUT`] to make progress: 16 KiB per second.
pub(super) const PROGRESS: usize = 160 << 10;
/// Interval of checks for stalled clients.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Kind of a call, by the space that its responses need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// One small response. The response's own size is counted once it exists.
    Small,
    /// One response that can be large. Space is reserved before the response is created.
    Large,
    /// A stream of responses, which counts towards the limit on response streams.
    Stream,
}

/// Amount of memory, in bytes, and number of response streams.
#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    bytes: usize,
    streams: usize,
}

impl Amount {
    const fn part(self, of: usize) -> Self {
        Self { bytes: self.bytes / of, streams: self.streams / of }
    }
}

const POOL: Amount = Amount { bytes: ALL, streams: STREAMS };

/// Limits by which the pool of a socket is divided between owners.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    /// Maximum amount per owner; does not apply to root.
    each: Amount,
    /// Amount reserved for root.
    kept: Amount,
}

impl Shares {
    /// Limits for a socket to which the host's root can connect: each owner has a maximum, and an amount is reserved
    /// for root.
    pub const WITH_ROOT: Self = Self { each: POOL.part(PART), kept: POOL.part(PART) };
    /// Limits for a socket on which no owner is root.
    pub const WITHOUT_ROOT: Self = Self { kept: Amount { bytes: 0, streams: 0 }, ..Self::WITH_ROOT };
    /// Limits as in [`Self::WITHOUT_ROOT`], but all connections of an owner together have the space of one connection,
    /// and response streams are not allowed.
    pub const ONE_CONNECTION: Self = Self { each: Amount { bytes: CONNECTION, streams: 0 }, ..Self::WITHOUT_ROOT };
}

/// Budget of a socket's connections.
#[derive(Clone, Debug)]
pub struct AnswerBudget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    shares: Shares,
    /// Shares by owner number. The lock is held while amounts in use change.
    owners: Mutex<HashMap<u64, Weak<OwnerShare>>>,
    all: InUse,
    /// Part of `all` that owners other than root use.
    non_root: InUse,
    /// Notified when space for responses is released.
    freed: Notify,
    /// Notified while a call waits because all owners together use up the space.
    pressure: Notify,
}

/// Amount used by all connections of an owner.
#[derive(Debug)]
struct OwnerShare {
    is_root: bool,
    used: InUse,
    /// Notified while a call waits because its owner's share is used up.
    pressure: Notify,
}

/// Amount in use. Changed only under the lock of [`Shared::owners`].
#[derive(Debug, Default)]
struct InUse {
    bytes: AtomicUsize,
    streams: AtomicUsize,
}

impl InUse {
    fn add(&self, Amount { bytes, streams }: Amount) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.streams.fetch_add(streams, Ordering::Relaxed);
    }

    fn subtract(&self, Amount { bytes, streams }: Amount) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.streams.fetch_sub(streams, Ordering::Relaxed);
    }

    /// Returns true if `more` fits in addition to the amount in use. A zero amount always fits.
    fn fits(&self, more: Amount, limit: Amount) -> bool {
        let fits = |used: &AtomicUsize, more, limit| more == 0 || used.load(Ordering::Relaxed) + more <= limit;
        fits(&self.bytes, more.bytes, limit.bytes) && fits(&self.streams, more.streams, limit.streams)
    }
}

/// The level whose space is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Full {
    Connection,
    Owner,
    All,
}

#[derive(Clone, Debug)]
pub struct ConnectionBudget {
    all: AnswerBudget,
    owner: Arc<OwnerShare>,
    own: Arc<InUse>,
}

/// Space for one response or stream, released on drop.
#[derive(Debug)]
pub struct AnswerPermit {
    budget: ConnectionBudget,
    amount: Amount,
}

impl AnswerBudget {
    pub fn new(shares: Shares) -> Self {
        Self(Arc::new(Shared {
            shares,
            owners: Mutex::default(),
            all: InUse::default(),
            non_root: InUse::default(),
            freed: Notify::new(),
            pressure: Notify::new(),
        }))
    }

    /// Returns the budget of a new connection of an owner.
    pub fn connection(&self, owner: u64, is_root: bool) -> ConnectionBudget {
        let mut owners = locked(&self.0.owners);
        let share = owners.get(&owner).and_then(Weak::upgrade);
        let share =
            share.unwrap_or_else(|| Arc::new(OwnerShare { is_root, used: InUse::default(), pressure: Notify::new() }));
        owners.retain(|_, share| share.strong_count() > 0);
        owners.insert(owner, Arc::downgrade(&share));
        drop(owners);
        ConnectionBudget { all: self.clone(), owner: share, own: Arc::default() }
    }
}

impl ConnectionBudget {
    /// Claims space from the connection, its owner and the socket. Returns the first level with too little free space.
    fn take(&self, more: Amount) -> Result<(), Full> {
        let Shared { shares, owners, all, non_root, .. } = &*self.all.0;
        let _changing = locked(owners);
        if !self.own.fits(more, Amount { bytes: CONNECTION, streams: usize::MAX }) {
            return Err(Full::Connection);
        }
        if !self.owner.is_root {
            if !self.owner.used.fits(more, shares.each) {
                return Err(Full::Owner);
            }
            let Amount { bytes, streams } = shares.kept;
            if !non_root.fits(more, Amount { bytes: POOL.bytes - bytes, streams: POOL.streams - streams }) {
                return Err(Full::All);
            }
        }
        if !all.fits(more, POOL) {
            return Err(Full::All);
        }
        self.levels(|level| level.add(more));
        Ok(())
    }

    fn release(&self, less: Amount) {
        let changing = locked(&self.all.0.owners);
        self.levels(|level| level.subtract(less));
        drop(changing);
        self.all.0.freed.notify_waiters();
    }

    fn levels(&self, change: impl Fn(&InUse)) {
        let non_root = (!self.owner.is_root).then_some(&self.all.0.non_root);
        [Some(&*self.own), Some(&self.owner.used), non_root, Some(&self.all.0.all)]
            .into_iter()
            .flatten()
            .for_each(change);
    }

    /// Waits until this many bytes are free, and claims them.
    ///
    /// # Errors
    /// Returns a message for the client if there was no space in time.
    async fn wait_and_take(&self, bytes: usize) -> Result<(), String> {
        let deadline = Instant::now() + SPACE_TIMEOUT;
        let Shared { shares, freed, pressure, .. } = &*self.all.0;
        loop {
            let mut room = std::pin::pin!(freed.notified());
            room.as_mut().enable();
            let Err(full) = self.take(Amount { bytes, streams: 0 }) else { return Ok(()) };
            let now = Instant::now();
            if now >= deadline {
                let seconds = SPACE_TIMEOUT.as_secs();
                return Err(match full {
                    Full::Connection => format!(
                        "unread responses on this connection have taken more than {} MiB for {seconds} s: read them first",
                        CONNECTION >> 20
                    ),
                    Full::Owner => format!(
                        "unread responses of this caller's connections have taken more than {} MiB for {seconds} s: read \
                         them first",
                        shares.each.bytes >> 20
                    ),
                    Full::All => {
                        format!("unread responses of all clients take more than {} MiB: try again later", ALL >> 20)
                    }
                });
            }
            match full {
                Full::Connection => {}
                Full::Owner => self.owner.pressure.notify_waiters(),
                Full::All => pressure.notify_waiters(),
            }
            let _ = tokio::time::timeout(POLL_INTERVAL.min(deadline - now), room).await;
        }
    }

    /// Waits until there is space to create the response of a call.
    ///
    /// # Errors
    /// Returns a message for the client if there was no space in time, or the owner has too many streams.
    pub async fn reserve(&self, kind: AnswerKind) -> Result<AnswerPermit, String> {
        let mut amount = Amount::default();
        match kind {
            AnswerKind::Small => {}
            AnswerKind::Large => {
                amount.bytes = LARGE;
                self.wait_and_take(LARGE).await?;
            }
            AnswerKind::Stream => {
                amount.streams = 1;
                self.take(amount).map_err(|full| match full {
                    Full::Owner | Full::Connection => format!(
                        "this caller has the maximum of {} open response streams: end some of these calls",
                        self.all.0.shares.each.streams
                    ),
                    Full::All => format!(
                        "all callers together have the maximum of {STREAMS} open response streams: try again later"
                    ),
                })?;
            }
        }
        Ok(AnswerPermit { budget: self.clone(), amount })
    }

    /// Resolves with the number of unread bytes when other calls wait for space and this connection's client is
    /// stalled. `unread` returns the number of unread bytes and the time of the last progress.
    pub async fn stalled(&self, unread: impl Fn() -> (usize, Instant)) -> usize {
        loop {
            tokio::select! {
                () = self.all.0.pressure.notified() => {}
                () = self.owner.pressure.notified() => {}
            }
            let (bytes, progress) = unread();
            if bytes > 0 && progress.elapsed() >= STALL_TIMEOUT {
                return bytes;
            }
        }
    }
}

impl AnswerPermit {
    /// Changes the reserved space to the size of the response.
    ///
    /// # Errors
    /// Returns a message for the client if the response is larger than the reserved space, and more space was not free
    /// in time.
    pub async fn resize(&mut self, bytes: usize) -> Result<(), String> {
        if let Some(less) = self.amount.bytes.checked_sub(bytes) {
            self.budget.release(Amount { bytes: less, streams: 0 });
        } else {
            self.budget.wait_and_take(bytes - self.amount.bytes).await?;
        }
        self.amount.bytes = bytes;
        Ok(())
    }
}

impl Drop for AnswerPermit {
    fn drop(&mut self) {
        self.budget.release(self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills an owner's share with unread large responses, on as many connections as needed.
    async fn fill(budget: &AnswerBudget, owner: u64, bytes: usize) -> Vec<AnswerPermit> {
        let mut held = Vec::new();
        while held.len() * LARGE < bytes {
            let room = budget.connection(owner, owner == 0);
            for _ in 0..(CONNECTION / LARGE).min(bytes / LARGE - held.len()) {
                held.push(room.reserve(AnswerKind::Large).await.unwrap());
            }
        }
        held
    }

    #[tokio::test]
    async fn streams_of_one_owner_leave_places() {
        let budget = AnswerBudget::new(Shares::WITH_ROOT);
        let mut held = Vec::new();
        for owner in [7, 8, 9] {
            for _ in 0..STREAMS / PART {
                held.push(budget.connection(owner, false).reserve(AnswerKind::Stream).await.unwrap());
            }
            let refused = budget.connection(owner, false).reserve(AnswerKind::Stream).await.unwrap_err();
            assert!(refused.contains("the maximum of 1024 open"), "{refused}");
        }
        let refused = budget.connection(10, false).reserve(AnswerKind::Stream).await.unwrap_err();
        assert!(refused.contains("4096"), "{refused}");
        for _ in 0..STREAMS / PART {
            held.push(budget.connection(0, true).reserve(AnswerKind::Stream).await.unwrap());
        }
        assert!(
            budget.connection(0, true).reserve(AnswerKind::Stream).await.is_err(),
            "root got more than the remaining space"
        );
        held.truncate(STREAMS / PART - 1);
        assert!(budget.connection(7, false).reserve(AnswerKind::Stream).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn unread_answers_of_an_owner_leave_room() {
        let budget = AnswerBudget::new(Shares::WITH_ROOT);
        let mut held = fill(&budget, 7, ALL / PART).await;
        let refused = budget.connection(7, false).reserve(AnswerKind::Large).await.unwrap_err();
        assert!(refused.contains("this caller") && refused.contains("16 MiB"), "{refused}");
        for owner in [8, 9] {
            held.extend(fill(&budget, owner, ALL / PART).await);
        }
        assert!(
            budget.connection(10, false).reserve(AnswerKind::Large).await.is_err(),
            "the remaining space is root's"
        );
        held.extend(fill(&budget, 0, ALL / PART).await);
        assert!(budget.connection(0, true).reserve(AnswerKind::Large).await.is_err());
        held.truncate(ALL / PART / LARGE - 1);
        assert!(budget.connection(7, false).reserve(AnswerKind::Large).await.is_ok());
        assert!(budget.connection(10, false).reserve(AnswerKind::Large).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn answer_takes_its_own_size() {
        let budget = AnswerBudget::new(Shares::WITHOUT_ROOT);
        let room = budget.connection(7, false);
        let mut held = Vec::new();
        for _ in 0..1000 {
            let mut permit = room.reserve(AnswerKind::Large).await.unwrap();
            permit.resize(1000).await.unwrap();
            held.push(permit);
        }
        assert_eq!(budget.0.all.bytes.load(Ordering::Relaxed), 1_000_000);
        let mut waited = room.reserve(AnswerKind::Small).await.unwrap();
        waited.resize(CONNECTION - 1_000_000).await.unwrap();
        assert!(waited.resize(CONNECTION).await.unwrap_err().contains("16 MiB"));
        held.clear();
        waited.resize(CONNECTION).await.unwrap();
        drop(waited);
        assert_eq!(budget.0.all.bytes.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_of_one_container_have_one_room() {
        let budget = AnswerBudget::new(Shares::ONE_CONNECTION);
        let mut held = fill(&budget, 7, CONNECTION).await;
        assert!(budget.connection(7, false).reserve(AnswerKind::Large).await.is_err());
        assert!(budget.connection(8, false).reserve(AnswerKind::Large).await.is_ok());
        held.clear();
        assert!(budget.connection(7, false).reserve(AnswerKind::Large).await.is_ok());
        let _other = budget.connection(9, false);
        assert_eq!(locked(&budget.0.owners).len(), 1, "owners without connections are removed");
    }

    /// If an owner or others need space, only stalled connections are closed.
    #[tokio::test(start_paused = true)]
    async fn stalled_connection_is_closed_under_pressure() {
        for waiting in [7, 11] {
            let budget = AnswerBudget::new(Shares::WITHOUT_ROOT);
            let mut held = fill(&budget, 7, ALL / PART).await;
            let others = if waiting == 7 { vec![] } else { vec![8, 9, 10] };
            for owner in others {
                held.extend(fill(&budget, owner, ALL / PART).await);
            }
            let (stalled, foreign) = (budget.connection(7, false), budget.connection(8, false));
            let begun = Instant::now();
            let late = budget.connection(waiting, false);
            let served = async {
                late.reserve(AnswerKind::Large).await.unwrap();
            };
            let watching = async {
                assert_eq!(stalled.stalled(|| (7, begun)).await, 7);
                held.clear();
            };
            tokio::select! {
                ((), ()) = async { tokio::join!(served, watching) } => {}
                _ = stalled.stalled(|| (0, begun)) => panic!("a client that has nothing to read"),
                _ = stalled.stalled(|| (7, Instant::now())) => panic!("a client that makes progress"),
                _ = foreign.stalled(|| (7, begun)), if waiting == 7 => panic!("a client of another owner"),
            }
            assert!(
                (STALL_TIMEOUT..STALL_TIMEOUT + 2 * POLL_INTERVAL).contains(&begun.elapsed()),
                "{:?}",
                begun.elapsed()
            );
        }
    }
}
