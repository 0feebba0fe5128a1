//! The embedded store behind the ledger: redb, because it is one file, checks what it reads, survives a kill at
//! any point, and needs no C library.
//!
//! Three tables: containers by id and events by cursor, each as JSON, and a few numbers. Its cache is small; the
//! daemon reads the ledger once.

use std::io;
use std::path::Path;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::{Batch, Loaded};
use crate::container::facts::Facts;
use crate::events::{Event, Kept};

const CONTAINERS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("containers");
const EVENTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("events");
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
/// The first cursor that is not reserved.
const RESERVED: &str = "cursors reserved";
/// How often a daemon was started.
const STARTS: &str = "starts";
/// The form of the tables. A newer one is refused.
const FORM: &str = "form";
const FORM_VERSION: u64 = 1;
/// Bytes of the store's cache.
const CACHE: usize = 1 << 20;

/// What the store could not do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk.
    #[error("{}", crate::plain(.0))]
    Io(io::Error),
    /// The store's own complaint.
    #[error(transparent)]
    Store(Box<redb::Error>),
    /// An entry that is not in its form.
    #[error("the ledger's entry {0} is not in its form")]
    Form(String, #[source] serde_json::Error),
    /// A newer daemon wrote it.
    #[error("the ledger has form {0}; this executord knows {FORM_VERSION}")]
    Newer(u64),
}

impl StoreError {
    /// The disk is full: there will be room again.
    pub(super) fn is_full(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, Self::Io(error) if full.contains(&error.kind()))
    }

    /// The content is broken, and no retry will mend it.
    pub(super) fn is_corruption(&self) -> bool {
        match self {
            Self::Store(error) => matches!(**error, redb::Error::Corrupted(_) | redb::Error::TableTypeMismatch { .. }),
            Self::Form(..) => true,
            // What redb says of a file that is none of its own.
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

/// What a daemon writes first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begin {
    /// The first cursor that is not reserved.
    pub reserved: u64,
    /// How often a daemon was started.
    pub starts: u64,
}

/// An open store.
pub(super) struct Store(Database);

impl Store {
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let there = path.exists();
        let opened = Database::builder().set_cache_size(CACHE).create(path);
        if opened.is_err() && !there {
            let _ = std::fs::remove_file(path); // half of a new one is not a store
        }
        Ok(Self(opened?))
    }

    /// Everything that is in the store.
    pub(super) fn load(&self) -> Result<Loaded, StoreError> {
        let transaction = self.0.begin_read()?;
        let mut loaded = Loaded { containers: Vec::new(), events: Kept::default(), starts: 0 };
        let numbers = match transaction.open_table(NUMBERS) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(loaded),
            other => other?,
        };
        let number = |name| numbers.get(name).map(|found| found.map_or(0, |value| value.value()));
        let form = number(FORM)?;
        if form > FORM_VERSION {
            return Err(StoreError::Newer(form));
        }
        loaded.starts = number(STARTS)?;
        loaded.events.next = number(RESERVED)?;
        for row in transaction.open_table(CONTAINERS)?.iter()? {
            let (id, json) = row?;
            let facts: Facts = serde_json::from_slice(json.value())
                .map_err(|error| StoreError::Form(format!("container {}", id.value()), error))?;
            loaded.containers.push(facts);
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

    /// The first write of a daemon: makes the tables and reserves its cursors, durably.
    pub(super) fn begin(&self, Begin { reserved, starts }: Begin) -> Result<(), StoreError> {
        let transaction = self.0.begin_write()?;
        {
            transaction.open_table(CONTAINERS)?;
            transaction.open_table(EVENTS)?;
            let mut numbers = transaction.open_table(NUMBERS)?;
            let form = numbers.get(FORM)?.map_or(0, |form| form.value());
            if form > FORM_VERSION {
                return Err(StoreError::Newer(form)); // it could not be read at the start
            }
            numbers.insert(FORM, FORM_VERSION)?;
            numbers.insert(RESERVED, reserved)?;
            numbers.insert(STARTS, starts)?;
        }
        Ok(transaction.commit()?)
    }

    /// Writes a batch, durably and as a whole.
    pub(super) fn write(&self, batch: &Batch) -> Result<(), StoreError> {
        let transaction = self.0.begin_write()?;
        {
            let mut containers = transaction.open_table(CONTAINERS)?;
            for (id, facts) in &batch.containers {
                match facts {
                    Some(facts) => drop(containers.insert(id.as_str(), &*json(id.as_str(), &**facts)?)?),
                    None => drop(containers.remove(id.as_str())?),
                }
            }
            let mut events = transaction.open_table(EVENTS)?;
            for (cursor, event) in &batch.events {
                events.insert(cursor, &*json("event", &**event)?)?;
            }
            events.retain_in(..batch.oldest_event, |_, _| false)?;
            if let Some(reserved) = batch.reserved {
                transaction.open_table(NUMBERS)?.insert(RESERVED, reserved)?;
            }
        }
        Ok(transaction.commit()?)
    }
}

fn json(name: &str, value: &impl serde::Serialize) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(value).map_err(|error| StoreError::Form(name.to_owned(), error))
}
