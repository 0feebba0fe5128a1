//! executord: takes requests over gRPC, decides, and has the launcher make containers.
//!
//! ```text
//!  api ──> admit ──> registry, capacity          what may be
//!   │        └─────> container::actor ──> launcher, shims      what is
//!   ├──> rotate ───────────────────────────────────> shims      what its files become
//!   ├──> events, ledger, retention, recover      what was
//!   ├──> logs                                    what they printed
//!   ├──> outputs                                 what they left behind
//!   └──> images ──> executor_images, launcher      what they are made of
//! ```
//! What goes in: `executor.v1` over a unix socket, records that shims write. What comes out: requests to the
//! launcher and to shims over SOCK_SEQPACKET, events, a ledger. It serves without any privilege, and no secret stays
//! in it longer than it takes to put it into a memory file.
//!
//! The binary is thin: [`boot`] makes a process that may serve, [`daemon`] serves.

#![forbid(unsafe_code)]

pub mod admit;
pub mod api;
pub mod boot;
pub mod cli;
pub mod config;
pub mod container;
pub mod daemon;
pub mod deletion;
pub mod events;
mod exec;
pub mod images;
pub mod launcher;
pub mod ledger;
pub mod logs;
pub mod node;
pub mod outputs;
mod packets;
pub mod paths;
pub mod problem;
pub mod recover;
pub mod registry;
pub mod retention;
pub mod rotate;
pub mod tag;
pub mod telemetry;
pub mod wire;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use executor_core::time::Timestamp;

/// The time now.
pub(crate) fn now() -> Timestamp {
    SystemTime::now().into()
}

/// Locks. A thread that panicked has ended the process (`panic = "abort"`), so that no lock is left poisoned by
/// code that ships.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An error and its causes in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut told = plain(error);
    let mut cause = error.source();
    while let Some(error) = cause {
        told.push_str(": ");
        told.push_str(&plain(error));
        cause = error.source();
    }
    told
}

/// An error's own words, without the number that Rust puts behind the system's.
pub(crate) fn plain(error: &dyn std::error::Error) -> String {
    let mut told = error.to_string();
    if let Some(at) = told.rfind(" (os error ").filter(|_| told.ends_with(')')) {
        told.truncate(at);
    }
    told
}
