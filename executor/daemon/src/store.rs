//! What is kept: the ledger, the event log, the registry of containers, captured outputs, cached downloads.

pub mod artifacts;
pub mod event_log;
pub mod ledger;
pub mod outputs;
pub mod registry;
