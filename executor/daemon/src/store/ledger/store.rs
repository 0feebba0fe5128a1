//! The embedded store of the ledger, which uses redb. redb stores all tables in one file, verifies checksums on reads,
//! survives a kill at any point, and needs no C library.
//!
//! Tables: containers by id, events by cursor, reservations by id and the state of the cell, each as JSON; a few
//! numbers; and the last boot. The cache is small, because the daemon reads the ledger only once.

use std::io;
use std::path::Path;

use executor_core::shortage::{self, Shortage};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::{LedgerBatch, LedgerContent};
use crate::model::events::Event;
use crate::model::status::ContainerStatus;

const CONTAINERS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("containers");
const EVENTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("events");
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
/// Key of the first cursor that is not reserved.
const RESERVED: &str = "cursors reserved";
/// Key of the number of daemons that were started on the store.
const STARTS: &str = "starts";
/// Key of the format version. A newer version is refused.
const FORM: &str = "form";
const FORM_VERSION: u64 = 1;
/// The boot in which the store was last written. Older daemons ignore this table.
const BOOTS: TableDefinition<'_, &str, &str> = TableDefinition::new("boots");
const LAST: &str = "last";
/// State of the cell, as JSON under [`LAST`]. Older daemons ignore this table.
const CELL: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("cell");
/// Reservations by id, as JSON. Older daemons ignore this table.
const RESERVATIONS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("reservations");
/// Size of the store's cache, in bytes.
const CACHE: usize = 1 << 20;

/// An error from reading or writing the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{}", executor_core::errors::plain(.0))]
    Io(io::Error),
    #[error(transparent)]
    Store(Box<redb::Error>),
    /// A value of a table cannot be parsed or encoded.
    #[error("the ledger's entry {0} is malformed")]
    Form(String, #[source] serde_json::Error),
    /// A newer daemon wrote the store.
    #[error("the ledger has format {0}; this executord reads formats up to {FORM_VERSION}")]
    Newer(u64),
}

impl StoreError {
    /// Returns true if the disk is full, so that a retry may succeed.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, Self::Io(error) if shortage::find(error) == Some(Shortage::Disk))
    }

    /// Returns true if the content is corrupt, so that no retry can succeed.
    pub(super) fn is_corruption(&self) -> bool {
        match self {
            Self::Store(error) => matches!(**error, redb::Error::Corrupted(_) | redb::Error::TableTypeMismatch { .. }),
            Self::Form(..) => true,
            // redb's error for a file in another format.
            Self::Io(error) => error.kind() == io::ErrorKind::InvalidData,
            Self::Newer(_) => false,
        }
    }
}

impl<E: Into<redb::Error>> From<E> for StoreError {
    fn from(error: E) -> Self {
        match error.into() {
            redb::Error::Io(error) => Self::Io(error),
            other => Self::Store(Box::new(other)),
        }
    }
}

/// Values of the first write of a daemon.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstWrite {
    /// First cursor that is not reserved.
    pub reserved: u64,
    /// Number of daemons that were started on the store.
    pub starts: u64,
}

pub(super) struct Store(Database);

impl Store {
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let there = path.exists();
        let opened = Database::builder().set_cache_size(CACHE).create(path);
        if opened.is_err() && !there {
            let _ = std::fs::remove_file(path); // an incomplete new store
        }
        Ok(Self(opened?))
    }

    /// Loads the whole content of the store.
    pub(super) fn load(&self) -> Result<LedgerContent, StoreError> {
        let transaction = self.0.begin_read()?;
        let mut loaded = LedgerContent::default();
        let numbers = match transaction.open_table(NUMBERS) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(loaded),
            other => other?,
        };
        let number = |name| numbers.get(name).map(|found| found.map_or(0, |value| value.value()));
        let form = number(FORM)?;
        if form > FORM_VERSION {
            return Err(StoreError::Newer(form));
        }
        loaded.boot_id = match transaction.open_table(BOOTS) {
            Err(redb::TableError::TableDoesNotExist(_)) => None,
            table => table?.get(LAST)?.map(|boot_id| boot_id.value().to_owned()),
        };
        loaded.starts = number(STARTS)?;
        loaded.events.next = number(RESERVED)?;
        for row in transaction.open_table(CONTAINERS)?.iter()? {
            let (id, json) = row?;
            let facts: ContainerStatus = serde_json::from_slice(json.value())
                .map_err(|error| StoreError::Form(format!("container {}", id.value()), error))?;
            loaded.containers.push(facts);
        }
        let cell = match transaction.open_table(CELL) {
            Err(redb::TableError::TableDoesNotExist(_)) => None,
            table => table?.get(LAST)?.map(|state| serde_json::from_slice(state.value())),
        };
        let malformed = |error| StoreError::Form("state of the cell".to_owned(), error);
        loaded.cell = cell.transpose().map_err(malformed)?.unwrap_or_default();
        let reservations = match transaction.open_table(RESERVATIONS) {
            Err(redb::TableError::TableDoesNotExist(_)) => None,
            table => Some(table?),
        };
        for row in reservations.iter().map(ReadableTable::iter).collect::<Result<Vec<_>, _>>()?.into_iter().flatten() {
            let (id, json) = row?;
            let reservation = serde_json::from_slice(json.value())
                .map_err(|error| StoreError::Form(format!("reservation {}", id.value()), error))?;
            loaded.reservations.push(reservation);
        }
        for row in transaction.open_table(EVENTS)?.iter()? {
            let (cursor, json) = row?;
            let event: Event = serde_json::from_slice(json.value())
                .map_err(|error| StoreError::Form(format!("event {}", cursor.value()), error))?;
            loaded.events.next = loaded.events.next.max(event.cursor + 1);
            loaded.events.events.push(event);
        }
        Ok(loaded)
    }

    /// Creates the tables and reserves the daemon's cursors, durably.
    pub(super) fn start(&self, FirstWrite { reserved, starts }: FirstWrite) -> Result<(), StoreError> {
        let transaction = self.0.begin_write()?;
        {
            transaction.open_table(CONTAINERS)?;
            transaction.open_table(EVENTS)?;
            let mut numbers = transaction.open_table(NUMBERS)?;
            let form = numbers.get(FORM)?.map_or(0, |form| form.value());
            if form > FORM_VERSION {
                return Err(StoreError::Newer(form)); // the store could not be read at startup
            }
            numbers.insert(FORM, FORM_VERSION)?;
            numbers.insert(RESERVED, reserved)?;
            numbers.insert(STARTS, starts)?;
        }
        Ok(transaction.commit()?)
    }

    /// Writes a batch, durably and atomically.
    pub(super) fn write(&self, batch: &LedgerBatch) -> Result<(), StoreError> {
        let transaction = self.0.begin_write()?;
        {
            let mut containers = transaction.open_table(CONTAINERS)?;
            for (id, facts) in &batch.containers {
                match facts {
                    Some(facts) => drop(containers.insert(id.as_str(), &*json(id.as_str(), &**facts)?)?),
                    None => drop(containers.remove(id.as_str())?),
                }
            }
            if !batch.reservations.is_empty() {
                let mut reservations = transaction.open_table(RESERVATIONS)?;
                for (id, reservation) in &batch.reservations {
                    match reservation {
                        Some(kept) => drop(reservations.insert(id.as_str(), &*json(id.as_str(), &**kept)?)?),
                        None => drop(reservations.remove(id.as_str())?),
                    }
                }
            }
            if let Some(state) = &batch.cell {
                transaction.open_table(CELL)?.insert(LAST, &*json("state of the cell", state)?)?;
            }
            let mut events = transaction.open_table(EVENTS)?;
            for (cursor, event) in &batch.events {
                events.insert(cursor, &*json("event", &**event)?)?;
            }
            events.retain_in(..batch.oldest_event, |_, _| false)?;
            if let Some(reserved) = batch.reserved {
                transaction.open_table(NUMBERS)?.insert(RESERVED, reserved)?;
            }
            if let Some(boot_id) = &batch.boot_id {
                transaction.open_table(BOOTS)?.insert(LAST, boot_id.as_str())?;
            }
        }
        Ok(transaction.commit()?)
    }
}

fn json(name: &str, value: &impl serde::Serialize) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(value).map_err(|error| StoreError::Form(name.to_owned(), error))
}
