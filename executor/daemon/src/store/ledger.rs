//! The ledger: stores containers and events across restarts of the daemon.
//!
//! Changes are collected, newer changes replace older changes, and one thread writes them in durable, atomic batches.
//! Requests do not wait for a batch, except for changes that must survive a kill (`put_durably`, `put_cell`). If a kill
//! -9 loses the last batch, its data is still in the shims' own records. A shim writes its record before it reports to
//! the daemon. These records are not synced: results reach the disk with the batch, in one sync for all containers that
//! completed in the meantime.
//!
//! A full or broken disk stops no container: the batch is kept, and the store is reopened until it accepts the batch.
//! In the meantime [`Ledger::trouble`] returns the reason, so that no new container is admitted. A daemon that starts
//! on a full disk does the same, with the readable data. If nothing is readable (a store that must be repaired first),
//! the daemon uses the containers' own records.

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
use store::{FirstWrite, Store};

pub use store::StoreError;

/// Number of event cursors per reservation. A crash wastes at most this number of the 2^64 cursors.
pub const CURSORS_RESERVED_AT_ONCE: u64 = 10_000;

/// Content of the ledger at startup.
#[derive(Debug, Default)]
pub struct LedgerContent {
    /// Containers, sorted by id.
    pub containers: Vec<ContainerStatus>,
    /// Reservations, sorted by id.
    pub reservations: Vec<Reservation>,
    pub cell: CellState,
    /// Retained events, and the next cursors.
    pub events: KeptEvents,
    /// Number of daemons that were started on this ledger, including this one.
    pub starts: u64,
    /// Boot in which the ledger was last written; `None` in a new ledger.
    pub boot_id: Option<String>,
}

/// An error from opening the ledger.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The store cannot be used.
    #[error("state directory {}", .0.display())]
    Store(PathBuf, #[source] StoreError),
    /// A broken store cannot be renamed.
    #[error("cannot rename the corrupt ledger {}", .0.display())]
    Aside(PathBuf, #[source] std::io::Error),
    /// The writer's thread cannot be started.
    #[error("cannot start the thread that writes the ledger")]
    Thread(#[source] std::io::Error),
}

/// Changes that are not written yet.
#[derive(Debug, Default)]
struct LedgerBatch {
    /// Changed containers by id; `None` if the container must be removed.
    containers: BTreeMap<ContainerId, Option<Arc<ContainerStatus>>>,
    /// Changed reservations by id; `None` if the reservation must be removed.
    reservations: BTreeMap<ContainerId, Option<Arc<Reservation>>>,
    /// State of the cell, if changed.
    cell: Option<CellState>,
    events: BTreeMap<u64, Arc<Event>>,
    /// Events before this cursor are no longer retained.
    oldest_event: u64,
    /// First cursor that is not reserved.
    reserved: Option<u64>,
    /// Id of this boot, if the batch must record it.
    boot_id: Option<String>,
    /// Notified when the batch is on disk.
    waiting: Vec<oneshot::Sender<()>>,
}

impl LedgerBatch {
    fn is_empty(&self) -> bool {
        self.containers.is_empty()
            && self.reservations.is_empty()
            && self.cell.is_none()
            && self.events.is_empty()
            && self.reserved.is_none()
            && self.boot_id.is_none()
    }

    /// Merges a batch that could not be written into this batch, which has the newer changes.
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

    /// Drops events that are no longer retained, to limit the batch while nothing can be written.
    fn drop_old_events(&mut self) {
        if self.events.first_key_value().is_some_and(|(first, _)| *first < self.oldest_event) {
            self.events = self.events.split_off(&self.oldest_event);
        }
    }
}

/// The daemon's handle of the ledger.
#[derive(Debug)]
pub struct Ledger {
    writer: writer::Writer,
}

impl Ledger {
    /// Opens the ledger in `dir`, reads it, and reserves cursors.
    ///
    /// # Errors
    /// Returns an error if the directory is missing or not writable, another process has the ledger open, or a newer
    /// daemon wrote the ledger. A full disk is not an error here, see [`Ledger::trouble`]. A corrupt store is
    /// renamed, and the error is logged: most of the data is also in records on disk.
    pub fn open(dir: &Path) -> Result<(Self, LedgerContent), LedgerError> {
        let path = dir.join("executord.redb");
        let failed = |error| LedgerError::Store(dir.parent().unwrap_or(dir).to_owned(), error);
        let (store, mut loaded) = match Store::open(&path).and_then(|store| store.load().map(|l| (Ok(store), l))) {
            Ok(both) => both,
            Err(full) if full.is_full() => (Err(full), LedgerContent::default()),
            Err(error) if error.is_corruption() => {
                let aside = dir.join(format!("executord.redb.broken-{}", now_micros()));
                let renamed = aside.display();
                tracing::error!(%error, %renamed, "the ledger is corrupt; renaming it and creating a new ledger");
                std::fs::rename(&path, &aside).map_err(|error| LedgerError::Aside(path.clone(), error))?;
                let store = Store::open(&path).map_err(failed)?;
                let mut loaded = store.load().map_err(failed)?;
                // The assigned cursors are unknown. The number of microseconds since the epoch is larger than all of
                // them.
                loaded.events.next = now_micros();
                (Ok(store), loaded)
            }
            Err(error) => return Err(failed(error)),
        };
        loaded.starts += 1;
        loaded.events.reserved = loaded.events.next + CURSORS_RESERVED_AT_ONCE;
        let start = |loaded: &LedgerContent| FirstWrite { reserved: loaded.events.reserved, starts: loaded.starts };
        let begun = store.and_then(|store| store.start(start(&loaded)).map(|()| store));
        let begun = match begun {
            Ok(store) => Ok(store),
            Err(full) if full.is_full() => {
                // No cursor can be reserved. Start at the current time, so that the next daemon does not assign the
                // same cursors.
                loaded.events.next = loaded.events.next.max(now_micros());
                loaded.events.reserved = loaded.events.next + CURSORS_RESERVED_AT_ONCE;
                Err((full, start(&loaded)))
            }
            Err(error) => return Err(failed(error)),
        };
        let writer = writer::Writer::start(begun, path).map_err(LedgerError::Thread)?;
        Ok((Self { writer }, loaded))
    }

    /// Stores the current status of a container.
    pub fn put(&self, facts: Arc<ContainerStatus>) {
        self.writer.add(|batch| drop(batch.containers.insert(facts.plan.id.clone(), Some(facts))));
    }

    /// Stores the current status of a container immediately. The receiver resolves when the status is on disk.
    pub fn put_durably(&self, facts: Arc<ContainerStatus>) -> oneshot::Receiver<()> {
        let (written, answer) = oneshot::channel();
        self.writer.add(|batch| {
            batch.containers.insert(facts.plan.id.clone(), Some(facts));
            batch.waiting.push(written);
        });
        answer
    }

    pub fn remove(&self, id: &ContainerId) {
        self.writer.add(|batch| drop(batch.containers.insert(id.clone(), None)));
    }

    /// Stores the current state of a reservation.
    pub fn put_reservation(&self, reservation: Arc<Reservation>) {
        self.writer.add(|batch| drop(batch.reservations.insert(reservation.id.clone(), Some(reservation))));
    }

    pub fn remove_reservation(&self, id: &ContainerId) {
        self.writer.add(|batch| drop(batch.reservations.insert(id.clone(), None)));
    }

    /// Stores the state of the cell. The receiver resolves when the state is on disk.
    pub fn put_cell(&self, state: CellState) -> oneshot::Receiver<()> {
        let (reported, written) = oneshot::channel();
        self.writer.add(|batch| {
            batch.cell = Some(state);
            batch.waiting.push(reported);
        });
        written
    }

    /// Stores an event, and removes the events before `oldest`.
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

    /// Records the boot in which the ledger is written.
    pub fn keep_boot(&self, boot_id: &str) {
        self.writer.add(|batch| batch.boot_id = Some(boot_id.to_owned()));
    }

    /// Returns the reason why nothing can be written; `None` if writing works.
    pub fn trouble(&self) -> Option<String> {
        self.writer.trouble()
    }

    /// Writes the remaining changes, with `next` as the first cursor that was never assigned, and stops the thread.
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
