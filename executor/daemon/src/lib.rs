//! executord: receives requests over gRPC, validates them, and creates containers through the launcher.
//!
//! ```text
//!  server ──> executor_transport                          connections, HTTP/2, access control
//!     │
//!    api ──> run::admit ──> requests, store::registry        new containers
//!     │        └─────> actor ──> launcher, shims             their lifecycle
//!     ├────> operations ───────────────> shims               secret files, limits, egress rules; exec, copy, delete
//!     ├────> background                                      drain, retention, self-test, reloads
//!     ├────> store                                           events, ledger, captured outputs
//!     ├────> logs                                            output, log sinks
//!     ├────> images ──> executor_images, launcher            images
//!     └────> telemetry, scrape                               metrics, traces
//! ```
//! Input: `executor.v1` over unix sockets and TCP, and the records that shims write. Output: requests to the launcher
//! and to shims over SOCK_SEQPACKET, events, the ledger. The daemon serves without any privilege, and holds secrets
//! only until they are in a memory file.
//!
//! Layers, from the bottom: `model` (types), `store` (persistence and registry), `node` (shared state), `operations`,
//! `actor` and `run` (actions), `api` (services), `daemon`. A module uses only modules of lower layers.
//!
//! The binary is thin: [`boot`] prepares the process, [`daemon`] serves.

#![forbid(unsafe_code)]

pub mod access;
mod actor;
pub mod api;
pub mod api_error;
pub mod background;
pub mod boot;
pub mod config;
pub mod daemon;
pub mod images;
pub(crate) mod ipc;
pub mod launcher;
pub mod logs;
pub mod model;
pub mod names;
pub mod node;
pub mod operations;
pub mod paths;
pub mod program;
pub mod requests;
pub mod run;
pub mod scrape;
pub mod server;
pub mod store;
pub mod telemetry;

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::{Duration, SystemTime};

use executor_core::time::Timestamp;

/// Maximum random change of a pause, in percent.
const JITTER: u64 = 10;

/// Returns the current time.
pub(crate) fn now() -> Timestamp {
    SystemTime::now().into()
}

/// Lengthens or shortens a pause by up to a tenth at random, so that many waiters do not retry at the same time.
pub(crate) fn with_jitter(pause: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() % (2 * JITTER * 10 + 1);
    pause.mul_f64(1.0 + (random as f64 / 10.0 - JITTER as f64) / 100.0)
}
