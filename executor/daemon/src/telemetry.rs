//! Observability of the daemon: its own log, metrics, traces.

pub mod log;
pub(crate) mod metrics;
pub(crate) mod traces;
