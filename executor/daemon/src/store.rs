//! Persistent and shared state: the ledger, the event log, the container registry, captured outputs, cached downloads.

pub mod artifacts;
pub mod event_log;
pub mod ledger;
pub mod outputs;
pub mod registry;
