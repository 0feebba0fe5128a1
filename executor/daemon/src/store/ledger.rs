//! The ledger: containers and events, kept over restarts of the daemon.
//!
//! Containers' facts and events go in; after a restart they come out again. No request waits for the ledger: changes
//! are collected, the newer replacing the older, and one thread writes them in batches, each durable as a whole. What a
//! kill -9 takes from the last batch is in the shims' own records, which are written before the daemon hears of them. These
//! are not synced: results are on the disk with the batch, in one sync for as many containers as end in its time.
//!
//! A disk that is full or broken stops no container: the batch is kept, the store is opened again until it takes the
//! batch, and meanwhile [`Ledger::trouble`] says why, so that no new container is admitted. A daemon that starts on a
//! full disk goes on likewise: with what can be read, and where nothing can (a store that has to be repaired first),
//! with the containers' own records.

mod store;
mod writer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use executor_core::ident::ContainerId;
use tokio::sync::oneshot;

use crate::model::cell::CellState;
use crate::model::events::{Event, KeptEvents};
use crate::model::reservation::Reservation;
use crate::model::status::ContainerStatus;
use store::{Begin, Store};

pub use store::StoreError;

/// Cursors of events that are reserved at once. A crash wastes at most this many of 2^64.
pub const CURSORS_RESERVED_AT_ONCE: u64 = 10_000;

/// Content of the ledger at the start.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Containers, in the order of their ids.
    pub containers: Vec<ContainerStatus>,
    /// Reservations, in the order of their ids.
    pub reservations: Vec<Reservation>,
    /// State of the cell.
    pub cell: CellState,
    /// Events.
    pub events: KeptEvents,
    /// Number of daemons that were started on this ledger, this one included.
    pub starts: u64,
    /// Boot in which the ledger was last written; `None` in a new one.
    pub boot_id: Option<String>,
}

/// Why the ledger cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The store cannot be used.
    #[error("state directory {}", .0.display())]
    Store(PathBuf, #[source] StoreError),
    /// A broken store cannot be renamed.
    #[error("cannot rename the broken ledger {}", .0.display())]
    Aside(PathBuf, #[source] std::io::Error),
    /// The writer's thread cannot be started.
    #[error("cannot start the thread that writes the ledger")]
    Thread(#[source] std::io::Error),
}

/// Changes to be written.
#[derive(Debug, Default)]
struct Batch {
    /// `None` where the container is to be forgotten.
    containers: BTreeMap<ContainerId, Option<Arc<ContainerStatus>>>,
    /// `None` where the reservation is to be forgotten.
    reservations: BTreeMap<ContainerId, Option<Arc<Reservation>>>,
    /// State of the cell, where it has changed.
    cell: Option<CellState>,
    events: BTreeMap<u64, Arc<Event>>,
    /// Events before this one are no longer kept.
    oldest_event: u64,
    /// The first cursor that is not reserved.
    reserved: Option<u64>,
    /// Id of this boot, where the batch is to note it.
    boot_id: Option<String>,
    /// Told when the batch is on the disk.
    waiting: Vec<oneshot::Sender<()>>,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.containers.is_empty()
            && self.reservations.is_empty()
            && self.cell.is_none()
            && self.events.is_empty()
            && self.reserved.is_none()
            && self.boot_id.is_none()
    }

    /// Takes back a batch that could not be written; changes since are newer.
    fn take_back(&mut self, failed: Self) {
        for (id, facts) in failed.containers {
            self.containers.entry(id).or_insert(facts);
        }
        for (id, reservation) in failed.reservations {
            self.reservations.entry(id).or_insert(reservation);
        }
        self.cell = self.cell.take().or(failed.cell);
        self.events.extend(failed.events);
        self.oldest_event = self.oldest_event.max(failed.oldest_event);
        self.reserved = self.reserved.or(failed.reserved);
        self.boot_id = self.boot_id.take().or(failed.boot_id);
        self.waiting.extend(failed.waiting);
        self.drop_old_events();
    }

    /// Bounds the batch while nothing can be written.
    fn drop_old_events(&mut self) {
        if self.events.first_key_value().is_some_and(|(first, _)| *first < self.oldest_event) {
            self.events = self.events.split_off(&self.oldest_event);
        }
    }
}

/// The daemon's end of the ledger.
#[derive(Debug)]
pub struct Ledger {
    writer: writer::Writer,
}

impl Ledger {
    /// Opens the ledger in `dir`, reads it, and reserves cursors.
    ///
    /// # Errors
    /// The directory is missing or not writable, or another process has the ledger open. A full disk is no error here,
    /// see [`Ledger::trouble`]. A broken store is renamed with an error in the log, because the records on disk have
    /// most of it again.
    pub fn open(dir: &Path) -> Result<(Self, Loaded), LedgerError> {
        let path = dir.join("executord.redb");
        let failed = |error| LedgerError::Store(dir.parent().unwrap_or(dir).to_owned(), error);
        let (store, mut loaded) = match Store::open(&path).and_then(|store| store.load().map(|l| (Ok(store), l))) {
            Ok(both) => both,
            Err(full) if full.is_full() => (Err(full), Loaded::default()),
            Err(error) if error.is_corruption() => {
                let aside = dir.join(format!("executord.redb.broken-{}", now_micros()));
                let renamed = aside.display();
                tracing::error!(%error, %renamed, "the ledger is broken; it was renamed, and a new one begins");
                std::fs::rename(&path, &aside).map_err(|error| LedgerError::Aside(path.clone(), error))?;
                let store = Store::open(&path).map_err(failed)?;
                let mut loaded = store.load().map_err(failed)?;
                // The cursors that were given out are unknown: the microseconds since the epoch are beyond them all.
                loaded.events.next = now_micros();
                (Ok(store), loaded)
            }
            Err(error) => return Err(failed(error)),
        };
        loaded.starts += 1;
        loaded.events.reserved = loaded.events.next + CURSORS_RESERVED_AT_ONCE;
        let start = |loaded: &Loaded| Begin { reserved: loaded.events.reserved, starts: loaded.starts };
        let begun = store.and_then(|store| store.start(start(&loaded)).map(|()| store));
        let begun = match begun {
            Ok(store) => Ok(store),
            Err(full) if full.is_full() => {
                // No cursor can be reserved, so that the next daemon might give out the same again.
                loaded.events.next = loaded.events.next.max(now_micros());
                loaded.events.reserved = loaded.events.next + CURSORS_RESERVED_AT_ONCE;
                Err((full, start(&loaded)))
            }
            Err(error) => return Err(failed(error)),
        };
        let writer = writer::Writer::start(begun, path).map_err(LedgerError::Thread)?;
        Ok((Self { writer }, loaded))
    }

    /// Keeps a container as it is now.
    pub fn put(&self, facts: Arc<ContainerStatus>) {
        self.writer.add(|batch| drop(batch.containers.insert(facts.plan.id.clone(), Some(facts))));
    }

    /// Keeps a container as it is now, at once. The answer comes when it is on the disk.
    pub fn put_durably(&self, facts: Arc<ContainerStatus>) -> oneshot::Receiver<()> {
        let (written, answer) = oneshot::channel();
        self.writer.add(|batch| {
            batch.containers.insert(facts.plan.id.clone(), Some(facts));
            batch.waiting.push(written);
        });
        answer
    }

    /// Forgets a container.
    pub fn forget(&self, id: &ContainerId) {
        self.writer.add(|batch| drop(batch.containers.insert(id.clone(), None)));
    }

    /// Keeps a reservation as it is now.
    pub fn put_reservation(&self, reservation: Arc<Reservation>) {
        self.writer.add(|batch| drop(batch.reservations.insert(reservation.id.clone(), Some(reservation))));
    }

    /// Forgets a reservation.
    pub fn forget_reservation(&self, id: &ContainerId) {
        self.writer.add(|batch| drop(batch.reservations.insert(id.clone(), None)));
    }

    /// Keeps the state of the cell. What is returned is told when it is on the disk.
    pub fn put_cell(&self, state: CellState) -> oneshot::Receiver<()> {
        let (reported, written) = oneshot::channel();
        self.writer.add(|batch| {
            batch.cell = Some(state);
            batch.waiting.push(reported);
        });
        written
    }

    /// Keeps an event, and forgets those before `oldest`.
    pub fn put_event(&self, event: Arc<Event>, oldest: u64) {
        self.writer.add(|batch| {
            batch.events.insert(event.cursor, event);
            batch.oldest_event = oldest;
            batch.drop_old_events();
        });
    }

    /// Reserves the cursors below `limit`.
    pub fn reserve_cursors(&self, limit: u64) {
        self.writer.add(|batch| batch.reserved = Some(limit));
    }

    /// Notes the boot in which the ledger is written.
    pub fn keep_boot(&self, boot_id: &str) {
        self.writer.add(|batch| batch.boot_id = Some(boot_id.to_owned()));
    }

    /// Returns why nothing can be written at the moment.
    pub fn trouble(&self) -> Option<String> {
        self.writer.trouble()
    }

    /// Writes the remaining changes, with `next` as the first cursor that was never given out, and ends the thread.
    pub fn close(&self, next: u64) {
        self.writer.add(|batch| batch.reserved = Some(next));
        self.writer.close();
    }
}

fn now_micros() -> u64 {
    crate::now().0 / 1000
}

#[cfg(test)]
mod tests;
